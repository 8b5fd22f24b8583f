/* A client of the shardwright daemon for programs in C, or in any language that can call C. It speaks the
 * protocol of ../PROTOCOL.md, version 2, on Linux.
 *
 *     gcc -std=c11 -O2 -c shardwright.c
 *     gcc camera.c shardwright.o -lzmq -lpthread -o camera
 *     gcc -std=c11 -O2 -shared -fPIC shardwright.c -lzmq -lpthread -o libshardwright.so
 *
 * It needs libzmq and its headers alone (Debian: libzmq3-dev). The last line makes a library for ctypes and
 * the like. examples/ has a program of each kind.
 *
 * A camera's program calls
 *
 *     sw_connect, then for each acquisition sw_open, sw_append for each frame, sw_finish; at last sw_close
 *
 * Frames are copied, into shared memory where daemon and camera are on one machine, else into memory of the
 * client's own, from which they are sent. A copy is kept until the daemon has released its frame. When the
 * daemon or the connection dies, a thread of the client connects again, resumes the acquisition, and sends
 * again what the daemon does not have. Meanwhile sw_append takes frames for as long as there is room. The
 * same thread sends heartbeats, so that the program may do nothing for any time.
 *
 * Every call returns within its timeout, and the time that copies take. (Only sw_connect and sw_close may
 * take 5 s longer, for a daemon that hangs while it hands over its memory.) Calls return 0, or -1 and say
 * why in `error`, which may be NULL. No call ends the program, and nothing is global: a process may have any
 * number of clients. Each has one acquisition at a time; several cameras at once have a client each. Any
 * thread may call sw_append, sw_flush and sw_get_progress; sw_open, sw_finish and sw_close one at a time,
 * sw_close last. In the child of a fork a client must not be used.
 *
 * Left out of the protocol: metadata that change while frames come (UPDATE), images that are added
 * (ADD_IMAGE), colour cameras whose channels are interleaved (send each channel as a frame), frames that a
 * driver writes in place (`claimed`), and the receipt's counts by image. */

#ifndef SHARDWRIGHT_H
#define SHARDWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All texts are UTF-8, cut if they are longer, and end with a zero; empty ones are not known. */
typedef struct {
    char code[40]; /* the kind, for programs: those of PROTOCOL.md, such as "timed_out" or "output_exists" */
    char message[1024];
    char expected[1024];
    char got[1024];
    char hint[1024]; /* what to do next */
} sw_error;

typedef enum {
    SW_AUTO, /* shared memory where it can be used, else messages */
    SW_SHM,  /* or sw_connect fails */
    SW_MESSAGE
} sw_transport;

typedef struct {
    sw_transport transport;
    int timeout_ms;           /* of sw_connect */
    int reconnect_timeout_ms; /* for so long a daemon that died is tried again; 0: never */
    /* For a daemon that demands keys, 40 characters of Z85 each, as sw_read_key returns them: the client's
     * own secret one, and the daemon's public one. Not used for ipc://. */
    const char *secret_key, *daemon_key;
} sw_options;

/* 10 s, 60 s, shared memory if it can be used, no keys. */
void sw_options_init(sw_options *options);

/* Reads "public-key" or "secret-key" from a file that `shardwright keygen` made. Fails with `config`, also
 * for a secret that others may read. */
int sw_read_key(const char *path, const char *field, char key[41], sw_error *error);

typedef struct sw_client sw_client;

/* Connects to tcp://HOST:PORT or ipc://PATH. `options` may be NULL. Returns NULL if it fails: `session_lost`
 * when no daemon answers, `access` when keys do not fit or the socket is not open to this user, `version`,
 * `config`. */
sw_client *sw_connect(const char *endpoint, const sw_options *options, sw_error *error);

/* Leaves. What an acquisition that was not finished has sent is sealed. */
void sw_close(sw_client *client);

typedef struct {
    const char *name;   /* of the acquisition; or NULL, to take up what is armed for `stream` */
    const char *spec;   /* its array as JSON, see PROTOCOL.md; or NULL */
    const char *stream; /* a stream of the daemon's configuration; or NULL */
    int reopen;         /* 1: go on with an acquisition whose client has died; spec and stream may be NULL */
    int64_t frames_expected; /* for a progress bar; 0: not known */
} sw_acquisition;

/* Begins an acquisition. Fails with the daemon's error, `timed_out`, or what ended the connection. After
 * `timed_out` the acquisition may be made all the same, without a frame. */
int sw_open(sw_client *client, const sw_acquisition *acquisition, int timeout_ms, sw_error *error);

/* What the daemon has made of the open acquisition, or of the last one. */
typedef struct {
    int64_t frames;  /* appended, dropped ones not counted */
    int64_t dropped; /* by the overload policy `drop` */
    int64_t stored;  /* so many frames, counted from the acquisition's first, survive a kill of the daemon */
    int64_t durable; /* or a power cut */
    int64_t lost;    /* reported lost by the daemon, though it had them */
    int64_t next;    /* the number of the next frame; not 0 at the beginning of an acquisition that goes on */
    int reconnects;
    int is_shared;      /* 1: pixels are in shared memory */
    size_t frame_bytes; /* of one frame; with several images of the largest */
} sw_progress;

/* `loss`: why frames were lost, the newest reason; may be NULL. */
void sw_get_progress(sw_client *client, sw_progress *progress, sw_error *loss);

/* The folder of the store on the daemon's machine; valid until the next sw_open. Empty before the first. */
const char *sw_path(sw_client *client);

/* What a frame may bring. Begin with sw_frame_init, which sets everything to "not given". */
typedef struct {
    int64_t frame_id; /* the camera's own number; -1 */
    int64_t place;    /* its index, raveled over the frame axes in acquisition order; -1: the next one */
    int64_t image;    /* the number of its image, where there are several; 0 */
    double delta_t, exposure_time;             /* seconds; NaN */
    double position_x, position_y, position_z; /* micrometres; NaN */
    const double *fields;                      /* those that the spec's frame_fields names; NULL */
    size_t field_count;
    const char *json; /* one JSON object, if the spec has frame_json_bytes; NULL */
} sw_frame;

void sw_frame_init(sw_frame *frame);

enum { SW_DROPPED = 1 };

/* Appends a frame: `bytes` of pixels, C order, little-endian. `frame` may be NULL. Waits for room, at most
 * `timeout_ms`: then it fails with `timed_out`, and the frame was not taken. Returns SW_DROPPED for a frame
 * for which there was no room, where the acquisition's policy is to drop. Fails with `frame_shape`,
 * `frame_index` and `metadata` for what does not fit (the acquisition goes on), `overload` where the policy
 * is to fail, `closed` after sw_finish, and with what ended the acquisition. Where there are several images
 * only the daemon checks place and image, and a wrong one ends the acquisition. */
int sw_append(sw_client *client, const void *pixels, size_t bytes, const sw_frame *frame, int timeout_ms,
              sw_error *error);

/* Waits until everything appended before is durable. Fails as sw_append does. */
int sw_flush(sw_client *client, int timeout_ms, sw_error *error);

/* The account of an acquisition, see PROTOCOL.md. */
typedef struct {
    int64_t frames_received, frames_stored, frames_durable, frames_missing, frames_duplicate, frames_late;
    int64_t bytes_raw, bytes_stored, shards;
    int64_t frames_dropped, frames_lost;
    int64_t frames_faster, frames_uncompressed, chunks_faster, chunks_uncompressed;
    int64_t frame_json_dropped;
    int is_known; /* 1: the daemon has sent it */
} sw_receipt;

/* Ends the acquisition: no more frames follow, and calls of sw_append that wait for room fail. Waits until
 * all are sealed. After `timed_out` call it again. An acquisition that failed may have a receipt of what was
 * kept beside the error (`is_known`). `receipt` may be NULL. */
int sw_finish(sw_client *client, sw_receipt *receipt, int timeout_ms, sw_error *error);

#ifdef __cplusplus
}
#endif
#endif
