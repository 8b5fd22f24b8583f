/* A camera that is told what to do: a line of words on standard input for each call, a line of JSON on
 * standard output for each answer. test_c_client.py tells it. */

#define _GNU_SOURCE

#include "shardwright.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define WORDS 8

static sw_client *client;
static sw_error error;

static void say_text(const char *name, const char *text) {
    printf(",\"%s\":\"", name);
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20) printf("\\u%04x", (unsigned)*text);
        else printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    printf("\"");
}

static void say(const char *what, int done) {
    printf("{\"did\":\"%s\",\"done\":%d", what, done);
    if (done < 0) {
        say_text("code", error.code), say_text("message", error.message), say_text("hint", error.hint);
        say_text("expected", error.expected), say_text("got", error.got);
    }
}

static void end_line(void) {
    printf("}\n");
    fflush(stdout);
}

static const char *optional(const char *word) { return strcmp(word, "-") == 0 ? NULL : word; }

/* The pixels of frame i, as test_c_client.py makes them. */
static void draw(uint16_t *pixels, size_t count, uint64_t i) {
    for (size_t j = 0; j < count; j++) pixels[j] = (uint16_t)(1 + (i * 7919 + j * 31) % 65535);
}

/* connect ENDPOINT auto|shm|message TIMEOUT_MS RECONNECT_MS SECRET_FILE|- DAEMON_FILE|- */
static void do_connect(char **word) {
    char secret[41], public[41];
    sw_options options;
    sw_options_init(&options);
    options.transport = word[1][0] == 'a' ? SW_AUTO : word[1][0] == 's' ? SW_SHM : SW_MESSAGE;
    options.timeout_ms = atoi(word[2]), options.reconnect_timeout_ms = atoi(word[3]);
    int done = 0;
    if (optional(word[4]) != NULL) {
        done = sw_read_key(word[4], "secret-key", secret, &error);
        if (done == 0) done = sw_read_key(word[5], "public-key", public, &error);
        options.secret_key = secret, options.daemon_key = public;
    }
    if (done == 0) done = (client = sw_connect(word[0], &options, &error)) ? 0 : -1;
    say("connect", done), end_line();
}

/* open NAME|- SPEC|- STREAM|- REOPEN TIMEOUT_MS */
static void do_open(char **word) {
    sw_acquisition what = {.name = optional(word[0]),
                           .spec = optional(word[1]),
                           .stream = optional(word[2]),
                           .reopen = atoi(word[3])};
    say("open", sw_open(client, &what, atoi(word[4]), &error));
    say_text("path", sw_path(client)), end_line();
}

/* append FIRST COUNT IMAGE|- JSON|- TIMEOUT_MS: says "took" after each frame; the place is given with an
 * image */
static void do_append(char **word) {
    uint64_t first = strtoull(word[0], NULL, 10), count = strtoull(word[1], NULL, 10);
    sw_progress progress;
    sw_get_progress(client, &progress, NULL);
    uint16_t *pixels = malloc(progress.frame_bytes);
    int done = 0, dropped = 0;
    for (uint64_t i = first; i < first + count && done >= 0; i++) {
        double mine[] = {0.5 * (double)i};
        sw_frame frame;
        sw_frame_init(&frame);
        frame.frame_id = (int64_t)i, frame.exposure_time = 0.001 * (double)i, frame.position_z = -1.0;
        if (optional(word[2])) frame.image = atoi(word[2]), frame.place = (int64_t)i;
        if (optional(word[3])) frame.json = word[3], frame.fields = mine, frame.field_count = 1;
        draw(pixels, progress.frame_bytes / 2, i);
        done = sw_append(client, pixels, progress.frame_bytes, &frame, atoi(word[4]), &error);
        memset(pixels, 0, progress.frame_bytes); /* the call has copied it */
        dropped += done == SW_DROPPED;
        if (done == 0) printf("{\"took\":%" PRIu64, i), end_line();
    }
    free(pixels);
    say("append", done), printf(",\"dropped\":%d", dropped), end_line();
}

struct share {
    uint64_t first, step, behind;
    int failed;
};

static void *append_share(void *argument) {
    struct share *share = argument;
    sw_error why;
    sw_progress progress;
    sw_get_progress(client, &progress, NULL);
    uint16_t *pixels = malloc(progress.frame_bytes);
    for (uint64_t i = share->first; i < share->behind && !share->failed; i += share->step) {
        sw_frame frame;
        sw_frame_init(&frame);
        frame.frame_id = (int64_t)i;
        draw(pixels, progress.frame_bytes / 2, i);
        share->failed = sw_append(client, pixels, progress.frame_bytes, &frame, 300000, &why) < 0;
        if (share->failed) fprintf(stderr, "%s: %s\n", why.code, why.message);
        else printf("{\"took\":%" PRIu64 "}\n", i), fflush(stdout);
    }
    free(pixels);
    return NULL;
}

/* threads COUNT FRAMES: each appends its share; frames are placed as they come */
static void do_threads(char **word) {
    int count = atoi(word[0]), failed = 0;
    pthread_t threads[16];
    struct share shares[16];
    for (int i = 0; i < count; i++) {
        shares[i] = (struct share){(uint64_t)i, (uint64_t)count, strtoull(word[1], NULL, 10), 0};
        pthread_create(&threads[i], NULL, append_share, &shares[i]);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL), failed |= shares[i].failed;
    memset(&error, 0, sizeof error);
    say("threads", failed ? -1 : 0), end_line();
}

static struct {
    pthread_t thread;
    uint64_t first, count;
    int done;
    sw_error why;
    unsigned char *held; /* a page that cannot be read until "release" */
    sem_t is_held, may_go_on;
} behind;

static void hold(int number, siginfo_t *facts, void *context) {
    (void)context;
    if ((unsigned char *)facts->si_addr < behind.held || (unsigned char *)facts->si_addr >= behind.held + 4096)
        signal(number, SIG_DFL);
    else {
        sem_post(&behind.is_held), sem_wait(&behind.may_go_on);
        mprotect(behind.held, 4096, PROT_READ);
    }
}

static void *append_behind(void *argument) {
    sw_progress progress;
    sw_get_progress(client, &progress, NULL);
    for (uint64_t i = behind.first; i < behind.first + behind.count && behind.done == 0; i++) {
        sw_frame frame;
        sw_frame_init(&frame);
        frame.frame_id = (int64_t)i;
        unsigned char *pixels = (unsigned char *)argument - progress.frame_bytes / 2;
        if (behind.held == NULL) draw((uint16_t *)(void *)pixels, progress.frame_bytes / 2, i);
        behind.done = sw_append(client, pixels, progress.frame_bytes, &frame, 300000, &behind.why);
        if (behind.done == 0) printf("{\"took\":%" PRIu64 "}\n", i), fflush(stdout);
    }
    return NULL;
}

/* behind FIRST COUNT HELD: appends beside other calls, until "join". HELD 1: the first frame's copy waits in
 * its middle for "release". */
static void do_behind(char **word) {
    unsigned char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sw_progress progress;
    sw_get_progress(client, &progress, NULL);
    behind.first = strtoull(word[0], NULL, 10), behind.count = strtoull(word[1], NULL, 10);
    behind.done = 0, behind.held = NULL;
    sem_init(&behind.is_held, 0, 0), sem_init(&behind.may_go_on, 0, 0);
    if (atoi(word[2])) {
        struct sigaction action = {.sa_sigaction = hold, .sa_flags = SA_SIGINFO};
        draw((uint16_t *)(void *)(pages + 4096 - progress.frame_bytes / 2), progress.frame_bytes / 2,
             behind.first);
        behind.held = pages + 4096;
        mprotect(behind.held, 4096, PROT_NONE);
        sigaction(SIGSEGV, &action, NULL);
    }
    pthread_create(&behind.thread, NULL, append_behind, pages + 4096);
    if (behind.held != NULL) sem_wait(&behind.is_held);
    say("behind", 0), end_line();
}

static void do_release(char **word) {
    (void)word;
    sem_post(&behind.may_go_on);
    say("release", 0), end_line();
}

static void do_join(char **word) {
    (void)word;
    pthread_join(behind.thread, NULL);
    error = behind.why;
    say("join", behind.done), end_line();
}

/* files: how many are open */
static void do_files(char **word) {
    (void)word;
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    say("files", 0), printf(",\"files\":%d", count), end_line();
}

static void tick(int number) { (void)number; }

/* ticks: from now on a signal interrupts the program's threads again and again */
static void do_ticks(char **word) {
    (void)word;
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}};
    sigaction(SIGALRM, &action, NULL), setitimer(ITIMER_REAL, &often, NULL);
    say("ticks", 0), end_line();
}

static void do_finish(char **word) {
    sw_receipt receipt;
    memset(&receipt, 0, sizeof receipt);
    say("finish", sw_finish(client, &receipt, atoi(word[0]), &error));
    printf(",\"is_known\":%d,\"frames_received\":%" PRId64 ",\"frames_stored\":%" PRId64, receipt.is_known,
           receipt.frames_received, receipt.frames_stored);
    printf(",\"frames_durable\":%" PRId64 ",\"frames_dropped\":%" PRId64 ",\"frames_missing\":%" PRId64,
           receipt.frames_durable, receipt.frames_dropped, receipt.frames_missing);
    printf(",\"frames_duplicate\":%" PRId64 ",\"frames_lost\":%" PRId64 ",\"bytes_raw\":%" PRId64,
           receipt.frames_duplicate, receipt.frames_lost, receipt.bytes_raw);
    printf(",\"frame_json_dropped\":%" PRId64 ",\"frames_late\":%" PRId64, receipt.frame_json_dropped,
           receipt.frames_late);
    end_line();
}

static void do_progress(char **word) {
    (void)word;
    sw_progress now;
    sw_get_progress(client, &now, NULL);
    say("progress", 0);
    printf(",\"frames\":%" PRId64 ",\"dropped\":%" PRId64 ",\"stored\":%" PRId64 ",\"durable\":%" PRId64
           ",\"lost\":%" PRId64,
           now.frames, now.dropped, now.stored, now.durable, now.lost);
    printf(",\"next\":%" PRId64 ",\"reconnects\":%d,\"is_shared\":%d,\"frame_bytes\":%zu", now.next,
           now.reconnects, now.is_shared, now.frame_bytes);
    end_line();
}

static void do_flush(char **word) { say("flush", sw_flush(client, atoi(word[0]), &error)), end_line(); }

static void do_close(char **word) {
    (void)word;
    sw_close(client);
    client = NULL;
    say("close", 0), end_line();
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(char **word);
        int words;
    } calls[] = {{"connect", do_connect, 6},   {"open", do_open, 5},   {"append", do_append, 5},
                 {"threads", do_threads, 2},   {"flush", do_flush, 1}, {"finish", do_finish, 1},
                 {"progress", do_progress, 0}, {"close", do_close, 0}, {"behind", do_behind, 3},
                 {"release", do_release, 0},   {"join", do_join, 0},   {"files", do_files, 0},
                 {"ticks", do_ticks, 0}};
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        char *word[WORDS], *rest = NULL, *first = strtok_r(line, "\t\n", &rest);
        int count = 0, known = 0;
        while (count < WORDS && (word[count] = strtok_r(NULL, "\t\n", &rest)) != NULL) count++;
        for (size_t i = 0; first != NULL && i < sizeof calls / sizeof *calls; i++)
            if (strcmp(first, calls[i].name) == 0 && count == calls[i].words) calls[i].run(word), known = 1;
        if (!known) return fprintf(stderr, "not a call: %s with %d words\n", first ? first : "", count), 2;
    }
    free(line);
    if (client != NULL) sw_close(client);
    return 0;
}
