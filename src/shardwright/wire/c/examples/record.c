/* record ENDPOINT NAME: sends 20 frames, each filled with its number, and prints the receipt. */

#include "shardwright.h"

#include <inttypes.h>
#include <stdio.h>

#define ROWS 240
#define COLUMNS 320

/* Chunks of 8 frames, in shards of 2 chunks; as many frames as come. */
static const char spec[] = "{\"dtype\": \"uint16\", \"frame_fields\": [\"laser_mw\"], \"dimensions\": ["
                           "{\"name\": \"t\", \"chunk_size\": 8, \"shard_size_chunks\": 2},"
                           "{\"name\": \"y\", \"count\": 240, \"chunk_size\": 240},"
                           "{\"name\": \"x\", \"count\": 320, \"chunk_size\": 320}]}";

static int complain(const sw_error *error) {
    fprintf(stderr, "%s: %s %s\n", error->code, error->message, error->hint);
    return 1;
}

int main(int argc, char **argv) {
    static uint16_t pixels[ROWS][COLUMNS];
    if (argc != 3) return fprintf(stderr, "usage: %s ENDPOINT NAME\n", argv[0]), 2;
    sw_error error;
    sw_options options;
    sw_options_init(&options);
    options.timeout_ms = 60000; /* a daemon that is starting is waited for */
    sw_client *client = sw_connect(argv[1], &options, &error);
    if (client == NULL) return complain(&error);
    sw_acquisition acquisition = {.name = argv[2], .spec = spec};
    int failed = sw_open(client, &acquisition, 60000, &error);
    for (uint16_t i = 0; failed == 0 && i < 20; i++) {
        for (int y = 0; y < ROWS; y++)
            for (int x = 0; x < COLUMNS; x++) pixels[y][x] = i;
        double laser_mw = 1.5 * i;
        sw_frame frame;
        sw_frame_init(&frame);
        frame.frame_id = i, frame.exposure_time = 0.01, frame.fields = &laser_mw, frame.field_count = 1;
        failed = sw_append(client, pixels, sizeof pixels, &frame, 60000, &error) < 0;
    }
    sw_receipt receipt;
    if (failed == 0) failed = sw_finish(client, &receipt, 60000, &error);
    if (failed == 0) printf("%s: %" PRId64 " frames durable\n", sw_path(client), receipt.frames_durable);
    sw_close(client);
    return failed ? complain(&error) : 0;
}
