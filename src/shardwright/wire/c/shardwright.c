/* The client of shardwright.h. PROTOCOL.md, next to this folder, draws every byte that is sent here.
 *
 *     the program's threads    sw_...: take a slot, copy a frame into it, describe it; wait for an event
 *     the client's thread      run_client: the only one that uses ZeroMQ. One round: wait -> receive
 *                              everything -> send everything -> heartbeats and silence
 *
 * `lock` guards all fields of sw_client. Without it pixels are copied, memory is fetched from the daemon, and
 * the thread waits. `changed` is broadcast whenever something may have happened for which a call waits.
 *
 *     frame    0 ................. sent_to ................. next_sequence
 *              sent: some are      described: to be sent
 *              released, some
 *              sent again
 *
 * A frame with pixels is described by the record of its slot, from sw_append until the daemon has released
 * it. `entries` holds the frames that are not released, by their sequence. What is in no entry is released,
 * or was dropped when there was no record for it: to the daemon both are frames that are not held any more.
 */

#define _GNU_SOURCE /* F_GET_SEALS, MSG_CMSG_CLOEXEC */

#include "shardwright.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum {
    HELLO = 1,
    WELCOME,
    OPEN,
    OPENED,
    FRAMES,
    ACK,
    HEARTBEAT,
    FINISH,
    RECEIPT,
    ERROR,
    FLUSH,
    UPDATE,
    UPDATED,
    ADD_IMAGE
};
enum { RELEASED = 1, STORED, DURABLE };
enum { FRAME_DROPPED = 1, FRAME_NOT_HELD = 2 };

#define VERSION 2
#define HEADER_BYTES 48
#define PRELUDE_BYTES 16
#define DESCRIPTOR_BYTES 96
#define RANGE_BYTES 24
#define IMAGE_SHIFT 48
#define MAX_PLACES ((int64_t)1 << IMAGE_SHIFT)
#define MAX_IMAGES 16384
#define MAX_CONTROL_BYTES (1 << 20)
#define MAX_MESSAGE_BYTES (2 << 20) /* from the daemon: no message of the protocol is longer */
#define MAX_ACK_RANGES 65536
#define MAX_MISSING 1024
#define MAX_FIELDS 32
#define MAX_JSON_BYTES 4096
#define MAX_DEPTH 128 /* of JSON */
#define MAX_SLOTS (1 << 22)
#define BATCH_FRAMES 1024
#define BATCH_BYTES (8 << 20) /* of pixels in one message, which are copied under the lock */
/* Descriptors of frames without pixels, of each kind. Each kind has its own: frames that are not held come
 * first in order, and would wait for ever for records that the dropped frames behind them had taken. */
#define MAX_PIXELLESS 1024
#define ROUND_MESSAGES 256 /* received before anything is sent */
#define MAX_CUTS 5         /* of handshakes */
#define BACKOFF_MS 50
#define MAX_BACKOFF_MS 1000
#define LAST_TRY_MS 500 /* for a connection that is begun when the time is nearly over */
#define HANDOVER_TIMEOUT_S 5
#define GOODBYE_LINGER_MS 500

/* --- errors --- */

/* Fills `error` (NULL: nobody wants to know) and returns -1. */
__attribute__((format(printf, 4, 5))) static int fail(sw_error *error, const char *code, const char *hint,
                                                      const char *format, ...) {
    if (error == NULL) return -1;
    va_list facts;
    va_start(facts, format);
    memset(error, 0, sizeof *error);
    vsnprintf(error->message, sizeof error->message, format, facts);
    va_end(facts);
    snprintf(error->code, sizeof error->code, "%s", code);
    snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
    return -1;
}

static int fail_as(sw_error *error, const sw_error *why) {
    if (error != NULL) *error = *why;
    return -1;
}

static int is_code(const sw_error *error, const char *code) { return strcmp(error->code, code) == 0; }

static int no_memory(sw_error *error) {
    return fail(error, "budget", "Use a smaller ring, or a machine with more memory",
                "no memory is left for it");
}

/* --- bytes, little-endian --- */

static void put(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static void put_double(unsigned char *at, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(at, bits, 8);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

typedef struct {
    int64_t utc_ns, monotonic_ns;
} moment;

static int64_t now_ms(void) { return clock_ns(CLOCK_MONOTONIC) / 1000000; }

/* --- JSON: text is checked as a whole by is_object, then read in place; nothing is allocated --- */

typedef struct {
    const char *at, *end;
} span;

static const char *skip_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

static int hex_digits(const char *at, const char *end, int count, unsigned *value) {
    *value = 0;
    if (end - at < count) return 0;
    for (int i = 0; i < count; i++) {
        const char *digits = "0123456789abcdef",
                   c = at[i] >= 'A' && at[i] <= 'F' ? (char)(at[i] + 32) : at[i];
        const char *found = c ? strchr(digits, c) : NULL;
        if (found == NULL) return 0;
        *value = *value * 16 + (unsigned)(found - digits);
    }
    return 1;
}

/* From a quote to behind the closing one; NULL for what is no string. */
static const char *skip_string(const char *at, const char *end) {
    unsigned ignored;
    for (at++; at < end && *at != '"'; at++) {
        if ((unsigned char)*at < 0x20) return NULL;
        if (*at != '\\') continue;
        if (++at == end || *at == 0 || strchr("\"\\/bfnrtu", *at) == NULL) return NULL;
        if (*at == 'u') {
            if (!hex_digits(at + 1, end, 4, &ignored)) return NULL;
            at += 4;
        }
    }
    return at < end ? at + 1 : NULL;
}

static const char *skip_digits(const char *at, const char *end) {
    const char *first = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at > first ? at : NULL;
}

static const char *skip_number(const char *at, const char *end) {
    if (at < end && *at == '-') at++;
    const char *digits = at;
    if ((at = skip_digits(at, end)) == NULL || (*digits == '0' && at > digits + 1)) return NULL;
    if (at < end && *at == '.' && (at = skip_digits(at + 1, end)) == NULL) return NULL;
    if (at < end && (*at == 'e' || *at == 'E')) {
        if (++at < end && (*at == '+' || *at == '-')) at++;
        return skip_digits(at, end);
    }
    return at;
}

/* From the first character of a value to behind it; NULL for what is no value, or too deep. */
static const char *skip_value(const char *at, const char *end, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    if (at == end || depth > MAX_DEPTH) return NULL;
    if (*at == '"') return skip_string(at, end);
    if (*at != '{' && *at != '[') {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            size_t length = strlen(words[i]);
            if ((size_t)(end - at) >= length && memcmp(at, words[i], length) == 0) return at + length;
        }
        return skip_number(at, end);
    }
    char close = *at == '{' ? '}' : ']';
    at = skip_space(at + 1, end);
    if (at < end && *at == close) return at + 1;
    for (;;) {
        if (close == '}') {
            if (at == end || *at != '"' || (at = skip_string(at, end)) == NULL) return NULL;
            at = skip_space(at, end);
            if (at == end || *at != ':') return NULL;
            at = skip_space(at + 1, end);
        }
        if ((at = skip_value(at, end, depth + 1)) == NULL) return NULL;
        at = skip_space(at, end);
        if (at == end) return NULL;
        if (*at == close) return at + 1;
        if (*at != ',') return NULL;
        at = skip_space(at + 1, end);
    }
}

static int is_utf8(span text) {
    for (const unsigned char *at = (const unsigned char *)text.at, *end = (const unsigned char *)text.end;
         at < end;) {
        int more = *at < 0x80                  ? 0
                   : *at >= 0xc2 && *at < 0xe0 ? 1
                   : (*at & 0xf0) == 0xe0      ? 2
                   : *at >= 0xf0 && *at < 0xf5 ? 3
                                               : -1;
        if (more < 0 || end - at <= more) return 0;
        /* neither longer than need be, nor half of a pair, nor beyond the last character */
        if ((*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f)) return 0;
        if ((*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f)) return 0;
        for (int i = 1; i <= more; i++)
            if ((at[i] & 0xc0) != 0x80) return 0;
        at += 1 + more;
    }
    return 1;
}

/* Whether `text` is one object, and trims the white space around it. Everything below relies on it. */
static int is_object(span *text) {
    text->at = skip_space(text->at, text->end);
    while (text->end > text->at && skip_space(text->end - 1, text->end) == text->end) text->end--;
    return text->at < text->end && *text->at == '{' && is_utf8(*text) &&
           skip_value(text->at, text->end, 0) == text->end;
}

static span value_at(const char *at, const char *end) { return (span){at, skip_value(at, end, 0)}; }

/* Finds a value by its key; 0 if it is not there, or null. */
static int find(span object, const char *key, span *value) {
    size_t length = strlen(key);
    for (const char *at = skip_space(object.at + 1, object.end); *at == '"';) {
        const char *name = at + 1, *behind = skip_string(at, object.end);
        at = skip_space(skip_space(behind, object.end) + 1, object.end);
        *value = value_at(at, object.end);
        if ((size_t)(behind - 1 - name) == length && memcmp(name, key, length) == 0) return *value->at != 'n';
        at = skip_space(value->end, object.end);
        if (*at == ',') at = skip_space(at + 1, object.end);
    }
    return 0;
}

/* Steps through an array: begin with `value` as the array's own span and `first` 1. Returns 0 at its end. */
static int next_of(span array, int first, span *value) {
    const char *at = skip_space(first ? array.at + 1 : value->end, array.end);
    if (*at == ',') at = skip_space(at + 1, array.end);
    if (*at == ']') return 0;
    *value = value_at(at, array.end);
    return 1;
}

static size_t put_utf8(char *out, unsigned code) {
    if (code < 0x80) return out[0] = (char)code, 1;
    if (code < 0x800) return out[0] = (char)(0xc0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    size_t first = code < 0x10000 ? 0 : 1;
    if (first) out[0] = (char)(0xf0 | code >> 18);
    out[first] = first ? (char)(0x80 | (code >> 12 & 63)) : (char)(0xe0 | code >> 12);
    out[first + 1] = (char)(0x80 | (code >> 6 & 63));
    out[first + 2] = (char)(0x80 | (code & 63));
    return first + 3;
}

/* Copies the text of a string, cut to whole characters, with a zero. Returns -1 if it was cut, or is none. */
static int copy_text(span value, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    if (*value.at != '"') return -1;
    for (const char *at = value.at + 1; at < value.end - 1;) {
        char piece[4];
        size_t length = 1;
        piece[0] = *at++;
        if (piece[0] == '\\') {
            static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
            const char *found = strchr(from, *at);
            piece[0] = found ? to[found - from] : *at;
            unsigned code, low;
            if (*at++ == 'u') {
                hex_digits(at, value.end, 4, &code);
                at += 4;
                if (code >= 0xd800 && code < 0xdc00 && at[0] == '\\' && at[1] == 'u' &&
                    hex_digits(at + 2, value.end, 4, &low) && low >= 0xdc00 && low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    at += 6;
                } else if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
                    code = 0xfffd; /* half of a pair, or what would end our text: no character */
                }
                length = put_utf8(piece, code);
            }
        } else {
            while (at < value.end - 1 && (*at & 0xc0) == 0x80 && length < 4) piece[length++] = *at++;
        }
        if (used + length >= size) return -1;
        memcpy(out + used, piece, length);
        out[used += length] = 0;
    }
    return 0;
}

/* The values of a body that a message must have: -1 and a protocol error for another type, or a value
 * outside. */

static int wrong_field(sw_error *error, const char *key) {
    return fail(error, "protocol", "Use the same shardwright release on both sides",
                "field '%s' of a control body is missing or of another type", key);
}

static int as_number(span value, int64_t low, int64_t high, int64_t *out) {
    errno = 0;
    char *end;
    if (*value.at != '-' && (*value.at < '0' || *value.at > '9')) return -1;
    *out = strtoll(value.at, &end, 10); /* ends within the body: a delimiter follows each number */
    return errno == 0 && end == value.end && *out >= low && *out <= high ? 0 : -1;
}

static int number(span body, const char *key, int64_t low, int64_t high, int64_t *out, sw_error *error) {
    span value;
    return find(body, key, &value) && as_number(value, low, high, out) == 0 ? 0 : wrong_field(error, key);
}

static int optional_number(span body, const char *key, int64_t high, int64_t missing, int64_t *out,
                           sw_error *error) {
    span value;
    *out = missing;
    return find(body, key, &value) && as_number(value, 0, high, out) != 0 ? wrong_field(error, key) : 0;
}

static int boolean(span body, const char *key, int *out, sw_error *error) {
    span value;
    if (!find(body, key, &value) || (*value.at != 't' && *value.at != 'f')) return wrong_field(error, key);
    *out = *value.at == 't';
    return 0;
}

static int text(span body, const char *key, char *out, size_t size, sw_error *error) {
    span value;
    return find(body, key, &value) && copy_text(value, out, size) == 0 ? 0 : wrong_field(error, key);
}

static int is_hex_32(const char *text) {
    return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

/* --- JSON that is sent: a text that grows --- */

typedef struct {
    char *at;
    size_t length, size;
    int is_full; /* no memory was left: `at` may be NULL */
} builder;

static void append_bytes(builder *out, const char *bytes, size_t length) {
    if (out->is_full) return;
    if (out->length + length + 1 > out->size) {
        size_t size = 2 * (out->length + length + 1);
        char *larger = realloc(out->at, size);
        if (larger == NULL) {
            out->is_full = 1;
            return;
        }
        out->at = larger, out->size = size;
    }
    memcpy(out->at + out->length, bytes, length);
    out->at[out->length += length] = 0;
}

static void append_text(builder *out, const char *text) { append_bytes(out, text, strlen(text)); }

__attribute__((format(printf, 2, 3))) static void append_format(builder *out, const char *format, ...) {
    char some[512];
    va_list facts;
    va_start(facts, format);
    vsnprintf(some, sizeof some, format, facts);
    va_end(facts);
    append_text(out, some);
}

/* A string, or null for NULL. */
static void append_string(builder *out, const char *text) {
    if (text == NULL) {
        append_text(out, "null");
        return;
    }
    append_text(out, "\"");
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20) append_format(out, "\\u%04x", (unsigned)*text);
        else {
            if (*text == '"' || *text == '\\') append_text(out, "\\");
            append_bytes(out, text, 1);
        }
    }
    append_text(out, "\"");
}

/* --- the client --- */

typedef struct {
    uint64_t sequence;
    uint32_t record; /* its slot; from slot_count on, a record without pixels; or one of these: */
} entry;
#define NOT_HELD UINT32_MAX        /* no record: only its sequence is known */
#define TAKEN_OUT (UINT32_MAX - 1) /* of a release that is under way */

typedef struct {
    char identity[33];
    int64_t epoch, slot_count, slot_bytes, credit_bytes, next_sequence;
    char ring_token[33];
    int drops, fails; /* the overload policy; neither: waits */
    int missing_count;
    uint64_t missing[MAX_MISSING][2];
    char *path;
    int dtype;
    uint32_t height, width;
    int is_alone;   /* one image: a place may be left out */
    int is_counted; /* every frame axis but the first has a count */
    int64_t places; /* the places of its frames */
    int64_t field_count, json_bytes;
} opened_facts;

typedef struct {
    char boot_id[65], ring_socket[1025], instance[33];
    int64_t heartbeat_ms, session_timeout_ms, max_control_bytes, max_batch_frames;
} welcome_facts;

typedef enum { NO_STREAM, OPENING, LIVE, ENDED, FAILED } stream_state;

struct sw_client {
    /* set by sw_connect, then only read */
    char *endpoint;
    int has_keys, wake_fd, reconnect_timeout_ms;
    sw_transport transport; /* SW_SHM or SW_MESSAGE, once it is connected */
    char public_key[41], secret_key[41], daemon_key[41];
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    /* guarded by `lock` from here on */
    int stopping; /* never taken back */
    int is_over;  /* the thread has ended, for `over` */
    sw_error over;
    int ever_welcomed;
    welcome_facts welcome;

    /* the acquisition */
    stream_state state;
    sw_error why;    /* of FAILED */
    char *open_body; /* of an OPEN without an answer: behind its number */
    char *stream;    /* as sw_open has named it; or NULL */
    char *path;
    opened_facts opened;
    sw_receipt receipt;
    size_t record_bytes;
    unsigned char *records; /* slot_count, then MAX_PIXELLESS */
    entry *entries;
    size_t entry_count, not_held_count;
    uint32_t *free_slots, *free_drops; /* a queue and a stack */
    size_t first_free_slot, free_slot_count, free_drop_count;
    unsigned char *memory; /* of slot_count slots, a shared or private mapping */
    size_t memory_bytes;
    unsigned generation; /* of `memory`: the lowest bit says which of the two counts below is of this one */
    int copying[2];      /* calls that copy a frame */
    uint64_t next_sequence, sent_to;
    int64_t appended, dropped, lost, stored, durable;
    sw_error loss;
    uint64_t flush_to; /* the highest sequence that a sw_flush waits for */
    int finishing, overloaded, reconnects;
    unsigned openings; /* how many sw_open have begun */

    /* of the connection: used by the thread, reset by sw_open; also under `lock` */
    void *socket, *monitor;
    int monitors; /* made so far: each has a name */
    int is_welcomed, handshake_done, cuts;
    int64_t started_ms, heard_ms, heartbeat_due_ms, lost_since_ms, next_try_ms, backoff_ms;
    int has_refusal;
    sw_error refusal; /* the last one since the connection was lost: a better reason than silence */
    uint64_t sent_0, received_0; /* messages of the connection itself */
    int64_t request, next_request;
    int is_asked, is_resuming; /* an OPEN was sent over this connection; it is to resume */
    char asked_of[33];         /* the process of the daemon that has an OPEN which it has not answered */
    uint64_t session, sent, received; /* session 0: none */
    uint64_t sent_before;             /* frames below were sent over an earlier connection */
    uint64_t again[MAX_MISSING][2];
    int again_at, again_count;
    uint64_t flushed;
    int finish_sent;
    unsigned char *body; /* of a FRAMES message that is being made */
    uint32_t *pixels;    /* the slots of its frames with pixels */
    int64_t batch_frames;
};

static void wake(sw_client *client) {
    uint64_t one = 1;
    ssize_t ignored = write(client->wake_fd, &one, sizeof one); /* full: it wakes up anyway */
    (void)ignored;
}

/* Waits for a change until `due_ms`; returns 0 if that is over. Within `lock`. */
static int wait_for_change(sw_client *client, int64_t due_ms) {
    struct timespec due = {due_ms / 1000, due_ms % 1000 * 1000000};
    /* also for a time before 0, which is an error and not the end of a wait */
    return pthread_cond_timedwait(&client->changed, &client->lock, &due) == 0;
}

/* --- frames from their number to their release --- */

/* The first entry with this sequence or a later one. */
static size_t entry_from(const sw_client *client, uint64_t sequence) {
    size_t low = 0, high = client->entry_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (client->entries[middle].sequence < sequence) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void free_slot(sw_client *client, uint32_t slot) {
    size_t slots = (size_t)client->opened.slot_count;
    client->free_slots[(client->first_free_slot + client->free_slot_count++) % slots] = slot;
}

/* Releases frames; the daemon may not release what was not sent, nor, over one connection, anything twice. */
static int release(sw_client *client, uint64_t first, uint64_t last, sw_error *error) {
    if (last >= client->sent_to)
        return fail(error, "protocol", NULL,
                    "a release of frames that were not sent: %" PRIu64 " to %" PRIu64, first, last);
    uint64_t from = first > client->sent_before ? first : client->sent_before, of_now = 0;
    for (size_t i = entry_from(client, first); i < client->entry_count && client->entries[i].sequence <= last;
         i++) {
        uint32_t record = client->entries[i].record;
        if (record == TAKEN_OUT) continue;
        of_now += client->entries[i].sequence >= from;
        if (record == NOT_HELD) client->not_held_count--;
        else if (record < client->opened.slot_count) free_slot(client, record);
        else client->free_drops[client->free_drop_count++] = record;
        client->entries[i].record = TAKEN_OUT;
    }
    if (last >= from && of_now != last - from + 1)
        return fail(error, "protocol", NULL,
                    "a release of frames that were released before: %" PRIu64 " to %" PRIu64, first, last);
    return 0;
}

static void drop_taken_out(sw_client *client) {
    size_t kept = 0;
    for (size_t i = 0; i < client->entry_count; i++)
        if (client->entries[i].record != TAKEN_OUT) client->entries[kept++] = client->entries[i];
    client->entry_count = kept;
}

static unsigned char *record_of(sw_client *client, uint32_t record) {
    return client->records + (size_t)record * client->record_bytes;
}

/* Writes a descriptor; `frame` NULL: of a frame that is not held. Its slot is set when it is sent. */
static void describe(const sw_client *client, unsigned char *at, uint64_t sequence, const sw_frame *frame,
                     moment given, int64_t position, unsigned flags, span json) {
    memset(at, 0, client->record_bytes);
    put(at, sequence, 8);
    put(at + 8, (uint64_t)(frame ? frame->frame_id : -1), 8);
    put(at + 16, (uint64_t)position, 8);
    put(at + 28, flags, 4);
    put(at + 32, (uint64_t)given.utc_ns, 8);
    put(at + 40, (uint64_t)given.monotonic_ns, 8);
    double known[5] = {NAN, NAN, NAN, NAN, NAN};
    if (frame) {
        known[0] = frame->delta_t, known[1] = frame->exposure_time;
        known[2] = frame->position_x, known[3] = frame->position_y, known[4] = frame->position_z;
    }
    for (int i = 0; i < 5; i++) put_double(at + 48 + 8 * i, known[i]);
    for (size_t i = 0; i < (size_t)client->opened.field_count; i++) {
        int is_given = frame && frame->fields && i < frame->field_count;
        put_double(at + DESCRIPTOR_BYTES + 8 * i, is_given ? frame->fields[i] : NAN);
    }
    if (json.at < json.end)
        memcpy(at + DESCRIPTOR_BYTES + 8 * client->opened.field_count, json.at, (size_t)(json.end - json.at));
}

/* Gives the next number to a frame that `record` describes; NOT_HELD: to one that nothing describes. */
static void number_frame(sw_client *client, uint32_t record) {
    if (record != NOT_HELD) client->entries[client->entry_count++] = (entry){client->next_sequence, record};
    client->next_sequence++;
    wake(client);
}

static void forget_stream(sw_client *client) {
    if (client->memory != NULL) munmap(client->memory, client->memory_bytes);
    client->memory = NULL;
    free(client->records), free(client->entries), free(client->free_slots), free(client->free_drops);
    free(client->body), free(client->pixels), free(client->open_body);
    client->records = client->body = NULL, client->entries = NULL;
    client->free_slots = client->free_drops = client->pixels = NULL, client->open_body = NULL;
    client->entry_count = client->not_held_count = client->free_slot_count = client->free_drop_count = 0;
}

static int begin_stream(sw_client *client, sw_error *error) {
    const opened_facts *opened = &client->opened;
    size_t slots = (size_t)opened->slot_count;
    size_t json = ((size_t)opened->json_bytes + 7) / 8 * 8;
    client->record_bytes = DESCRIPTOR_BYTES + 8 * (size_t)opened->field_count + json;
    int64_t by_bytes = client->transport == SW_SHM ? BATCH_FRAMES : BATCH_BYTES / opened->slot_bytes;
    int64_t most =
        client->welcome.max_batch_frames < BATCH_FRAMES ? client->welcome.max_batch_frames : BATCH_FRAMES;
    client->batch_frames = by_bytes < 1 ? 1 : by_bytes < most ? by_bytes : most;
    client->records = calloc(slots + MAX_PIXELLESS, client->record_bytes);
    client->entries = calloc(slots + 2 * MAX_PIXELLESS, sizeof *client->entries);
    client->free_slots = calloc(slots, sizeof *client->free_slots);
    client->free_drops = calloc(MAX_PIXELLESS, sizeof *client->free_drops);
    client->body = malloc(PRELUDE_BYTES + (size_t)client->batch_frames * client->record_bytes);
    client->pixels = calloc((size_t)client->batch_frames, sizeof *client->pixels);
    if (!client->records || !client->entries || !client->free_slots || !client->free_drops || !client->body ||
        !client->pixels)
        return no_memory(error);
    client->first_free_slot = 0;
    for (uint32_t i = 0; i < slots; i++) free_slot(client, i);
    for (uint32_t i = 0; i < MAX_PIXELLESS; i++)
        client->free_drops[client->free_drop_count++] = (uint32_t)slots + i;
    client->next_sequence = client->sent_to = (uint64_t)opened->next_sequence;
    client->sent_before = 0;
    return 0;
}

/* Ends the acquisition with an error, unless it has ended before. Within `lock`. */
static void fail_stream(sw_client *client, const sw_error *why) {
    if (client->state != OPENING && client->state != LIVE) return;
    client->state = FAILED;
    client->why = *why;
    pthread_cond_broadcast(&client->changed);
}

/* --- to the daemon --- */

static int send_part(sw_client *client, const void *bytes, size_t length, int more) {
    int sent;
    do sent = zmq_send(client->socket, bytes, length, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

static int check_connection(sw_client *client, sw_error *error);

/* Sends header and body; the caller sends `pixel_parts` parts more. `session` 0: of the connection. */
static int send_message(sw_client *client, int kind, uint64_t session, const void *body, size_t length,
                        uint32_t count, uint32_t pixel_parts, uint64_t payload_bytes, sw_error *error) {
    unsigned char header[HEADER_BYTES] = {'S', 'W', 'R', '1'};
    put(header + 4, VERSION, 2);
    header[6] = (unsigned char)kind;
    put(header + 8, session, 8);
    put(header + 16, session == 0 ? client->sent_0++ : session == client->session ? client->sent++ : 0, 8);
    put(header + 24, count, 4);
    put(header + 28, (length > 0) + pixel_parts, 4);
    put(header + 32, length, 8);
    put(header + 40, payload_bytes, 8);
    if (send_part(client, header, sizeof header, length > 0) == 0 &&
        (length == 0 || send_part(client, body, length, pixel_parts > 0) == 0))
        return 0;
    /* ZeroMQ waits for nobody here, so it has given the connection up: its events say why */
    if (check_connection(client, error) != 0) return -1;
    return fail(error, "session_lost", NULL, "the daemon closed the connection %s", client->endpoint);
}

static int send_control(sw_client *client, int kind, uint64_t session, builder *body, sw_error *error) {
    int done = body->is_full ? no_memory(error)
                             : send_message(client, kind, session, body->at, body->length, 0, 0, 0, error);
    free(body->at);
    return done;
}

/* Ends a session, or with 0 all of the connection. The daemon seals what came. */
static void send_end(sw_client *client, uint64_t session, const char *code, const char *message) {
    builder body = {0};
    append_text(&body, "{\"code\":");
    append_string(&body, code);
    append_text(&body, ",\"message\":");
    append_string(&body, message);
    append_text(&body, ",\"fatal\":true}");
    send_control(client, ERROR, session, &body, NULL); /* the peer may be gone */
}

static int send_open(sw_client *client, sw_error *error) {
    builder body = {0};
    append_format(&body, "{\"request\":%" PRId64, client->request = client->next_request++);
    if (client->state == LIVE) {
        const opened_facts *opened = &client->opened;
        const char *slash =
            strrchr(client->path, '/'); /* the name that the store got: it may be a numbered one */
        append_text(&body, ",\"name\":");
        append_string(&body, slash ? slash + 1 : client->path);
        append_text(&body, ",\"spec\":null,\"stream\":");
        append_string(&body, client->stream);
        append_format(&body, ",\"transport\":\"%s\"", client->transport == SW_SHM ? "shm" : "message");
        append_format(&body, ",\"resume\":{\"acquisition\":\"%s\",\"client_epoch\":%" PRId64,
                      opened->identity, opened->epoch);
        append_format(&body, ",\"next_sequence\":%" PRIu64 ",\"ring_slots\":%" PRId64 "}", client->sent_to,
                      opened->slot_count);
        append_text(&body, ",\"reopen\":false,\"frames_expected\":null,\"opening\":null}");
    } else {
        append_text(&body, client->open_body);
    }
    client->is_asked = 1;
    client->is_resuming = client->state == LIVE;
    snprintf(client->asked_of, sizeof client->asked_of, "%s", client->welcome.instance);
    return send_control(client, OPEN, 0, &body, error);
}

/* Takes the next frames into `body`. Returns how many. */
static uint32_t take_frames(sw_client *client, uint32_t *pixel_count) {
    int is_again = client->again_at < client->again_count;
    uint64_t sequence = is_again ? client->again[client->again_at][0] : client->sent_to;
    uint64_t behind = is_again ? client->again[client->again_at][1] + 1 : client->next_sequence;
    size_t at = entry_from(client, sequence);
    uint32_t count = 0;
    *pixel_count = 0;
    for (; sequence < behind && count < client->batch_frames; sequence++, count++, at++) {
        unsigned char *out = client->body + PRELUDE_BYTES + count * client->record_bytes;
        if (at == client->entry_count || client->entries[at].sequence != sequence) {
            if (client->not_held_count == MAX_PIXELLESS) break; /* until the daemon releases some */
            client->not_held_count++;
            memmove(client->entries + at + 1, client->entries + at,
                    (client->entry_count++ - at) * sizeof(entry));
            client->entries[at] = (entry){sequence, NOT_HELD};
        }
        uint32_t record = client->entries[at].record;
        if (record == NOT_HELD) {
            describe(client, out, sequence, NULL, (moment){0, 0}, -1, FRAME_NOT_HELD, (span){NULL, NULL});
            continue;
        }
        memcpy(out, record_of(client, record), client->record_bytes);
        if (record >= client->opened.slot_count) continue;
        put(out + 24, client->transport == SW_SHM ? record : *pixel_count, 4);
        client->pixels[(*pixel_count)++] = record;
    }
    if (!is_again) client->sent_to = sequence;
    else if (sequence == behind) client->again_at++;
    else client->again[client->again_at][0] = sequence;
    return count;
}

/* Sends one message of frames. Returns 1 if there may be more, 0 if there are none. */
static int send_frames(sw_client *client, sw_error *error) {
    uint32_t pixel_count, count = take_frames(client, &pixel_count);
    if (count == 0) return 0;
    memset(client->body, 0, PRELUDE_BYTES);
    client->body[0] = (unsigned char)client->opened.dtype;
    put(client->body + 4, client->opened.height, 4);
    put(client->body + 8, client->opened.width, 4);
    size_t slot_bytes = (size_t)client->opened.slot_bytes,
           length = PRELUDE_BYTES + count * client->record_bytes;
    if (client->transport == SW_SHM) pixel_count = 0;
    if (send_message(client, FRAMES, client->session, client->body, length, count, pixel_count,
                     (uint64_t)pixel_count * slot_bytes, error) != 0)
        return -1;
    for (uint32_t i = 0; i < pixel_count; i++)
        if (send_part(client, client->memory + client->pixels[i] * slot_bytes, slot_bytes,
                      i + 1 < pixel_count) != 0)
            return fail(error, "session_lost", NULL, "a message could not be sent: %s", zmq_strerror(errno));
    return 1;
}

/* Sends everything that is ready. */
static int send_ready(sw_client *client, sw_error *error) {
    if (!client->is_welcomed) return 0;
    if (client->state == OPENING && !client->is_asked && send_open(client, error) != 0) return -1;
    if (client->state != LIVE || client->session == 0) return 0;
    int more;
    while ((more = send_frames(client, error)) > 0) continue;
    if (more < 0) return -1;
    if (client->again_at < client->again_count || client->sent_to < client->next_sequence) return 0;
    if (client->flush_to > client->flushed && client->flush_to > (uint64_t)client->durable) {
        client->flushed = client->flush_to;
        if (send_message(client, FLUSH, client->session, NULL, 0, 0, 0, 0, error) != 0) return -1;
    }
    if (client->finishing && !client->finish_sent && client->copying[0] + client->copying[1] == 0) {
        builder body = {0};
        append_format(&body, "{\"frames\":%" PRIu64 "}", client->next_sequence);
        client->finish_sent = 1;
        return send_control(client, FINISH, client->session, &body, error);
    }
    return 0;
}

/* --- the memory of the slots --- */

static int connect_to(const char *path, sw_error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return fail(error, "session_lost", NULL, "the path of the ring socket is too long: %.200s", path);
    strcpy(address.sun_path, path);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {HANDOVER_TIMEOUT_S, 0};
    if (connection >= 0) {
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) return connection;
    }
    fail(error, "session_lost", NULL, "the daemon did not hand over the ring: %s", strerror(errno));
    if (connection >= 0) close(connection);
    return -1;
}

/* Receives the answer and the file of the ring, -1 if none came. Returns the answer's length. */
static ssize_t receive_ring(int connection, unsigned char answer[16], int *ring) {
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = {answer, 16};
    /* the length without its padding, in which a second file has room: the kernel then closes further ones */
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    *ring = -1;
    ssize_t length = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    struct cmsghdr *first = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (first != NULL && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS &&
        first->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ring, CMSG_DATA(first), sizeof(int));
    return length;
}

/* Fetches and maps the ring of a session. Without `lock`: it waits for the daemon. */
static unsigned char *fetch_ring(const char *path, uint64_t session, const opened_facts *opened,
                                 sw_error *error) {
    unsigned char request[32] = {'S', 'W', 'R', 'R'}, answer[16] = {0};
    uint64_t bytes = (uint64_t)opened->slot_count * (uint64_t)opened->slot_bytes;
    int connection = connect_to(path, error), ring = -1;
    if (connection < 0) return NULL;
    put(request + 4, VERSION, 2);
    put(request + 8, session, 8);
    for (int i = 0; i < 16; i++) {
        unsigned value;
        hex_digits(opened->ring_token + 2 * i, opened->ring_token + 32, 2, &value);
        request[16 + i] = (unsigned char)value;
    }
    ssize_t length = -1;
    if (send(connection, request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request)
        length = receive_ring(connection, answer, &ring);
    close(connection);
    unsigned char *memory = NULL;
    struct stat facts;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
              sealed = ring < 0 ? -1 : fcntl(ring, F_GET_SEALS); /* -1, too, for a file that takes none */
    if (length <= 0) {
        fail(error, "session_lost", NULL, "the daemon did not hand over the ring");
    } else if (length != sizeof answer || memcmp(answer, "SWRR", 4) != 0 || get(answer + 4, 2) != VERSION) {
        fail(error, "protocol", NULL, "not an answer to a ring request");
    } else if (get(answer + 6, 2) != 0 || get(answer + 8, 8) != bytes || ring < 0) {
        fail(error, "protocol", NULL, "the daemon refused to hand over the ring, or it is not as announced");
    } else if (sealed < 0 || (sealed & seals) != seals || fstat(ring, &facts) != 0 ||
               (uint64_t)facts.st_size != bytes) {
        /* before the first access: a ring that could shrink would kill this process */
        fail(error, "protocol", NULL, "an unsealed or wrongly sized ring");
    } else {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, 0);
        if (memory == MAP_FAILED) memory = NULL, no_memory(error);
    }
    if (ring >= 0) close(ring);
    return memory;
}

/* Replaces the memory, with every frame that is not released in its slot. A call that is copying a frame
 * finds another generation afterwards, and copies it again. Frames are moved before the wait for such calls:
 * those that other calls append meanwhile are in the new memory alone. Within `lock`. */
static void replace_memory(sw_client *client, unsigned char *memory) {
    unsigned char *old = client->memory;
    int earlier = client->generation++ & 1;
    size_t slot_bytes = (size_t)client->opened.slot_bytes;
    client->memory = memory;
    if (old != NULL) {
        for (size_t i = 0; i < client->entry_count; i++) {
            size_t slot = client->entries[i].record;
            if (slot < (size_t)client->opened.slot_count)
                memcpy(memory + slot * slot_bytes, old + slot * slot_bytes, slot_bytes);
        }
        while (client->copying[earlier] > 0)
            pthread_cond_wait(&client->changed, &client->lock); /* copies end by themselves */
        munmap(old, client->memory_bytes);
    }
    client->memory_bytes = (size_t)client->opened.slot_count * slot_bytes;
}

/* --- from the daemon --- */

/* Reads an error's body: what is missing or too long is left out, so that there always is one. */
static void read_error(span body, sw_error *why) {
    memset(why, 0, sizeof *why);
    span value;
    if (find(body, "code", &value)) copy_text(value, why->code, sizeof why->code);
    if (find(body, "message", &value)) copy_text(value, why->message, sizeof why->message);
    if (find(body, "expected", &value)) copy_text(value, why->expected, sizeof why->expected);
    if (find(body, "got", &value)) copy_text(value, why->got, sizeof why->got);
    if (find(body, "hint", &value)) copy_text(value, why->hint, sizeof why->hint);
    if (!why->code[0]) strcpy(why->code, "internal");
}

static int read_receipt(span facts, sw_receipt *receipt, sw_error *error) {
    /* the last six came later than the protocol: a daemon of an earlier release leaves them out */
    static const struct {
        const char *name;
        size_t at;
        int may_be_missing;
    } counts[] = {
#define COUNT(name, may_be_missing) {#name, offsetof(sw_receipt, name), may_be_missing}
        COUNT(frames_received, 0),     COUNT(frames_stored, 0),    COUNT(frames_durable, 0),
        COUNT(frames_missing, 0),      COUNT(frames_duplicate, 0), COUNT(frames_late, 0),
        COUNT(bytes_raw, 0),           COUNT(bytes_stored, 0),     COUNT(shards, 0),
        COUNT(frames_dropped, 0),      COUNT(frames_lost, 0),      COUNT(frames_faster, 1),
        COUNT(frames_uncompressed, 1), COUNT(chunks_faster, 1),    COUNT(chunks_uncompressed, 1),
        COUNT(frame_json_dropped, 1),
#undef COUNT
    };
    sw_receipt read = {0};
    if (*facts.at != '{') return wrong_field(error, "receipt");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t *count = (int64_t *)(void *)((char *)&read + counts[i].at);
        if ((counts[i].may_be_missing ? optional_number(facts, counts[i].name, INT64_MAX, 0, count, error)
                                      : number(facts, counts[i].name, 0, INT64_MAX, count, error)) != 0)
            return -1;
    }
    read.is_known = 1;
    *receipt = read;
    return 0;
}

static int read_welcome(span body, welcome_facts *welcome, sw_error *error) {
    memset(welcome, 0, sizeof *welcome);
    span value;
    if (find(body, "boot_id", &value) && copy_text(value, welcome->boot_id, sizeof welcome->boot_id) != 0)
        return wrong_field(error, "boot_id");
    if (find(body, "ring_socket", &value) &&
        copy_text(value, welcome->ring_socket, sizeof welcome->ring_socket) != 0)
        return wrong_field(error, "ring_socket");
    if (find(body, "instance", &value) &&
        (copy_text(value, welcome->instance, sizeof welcome->instance) != 0 || !is_hex_32(welcome->instance)))
        return wrong_field(error, "instance");
    if (number(body, "heartbeat_ms", 1, 3600000, &welcome->heartbeat_ms, error) != 0 ||
        number(body, "session_timeout_ms", 1, 24 * 3600000, &welcome->session_timeout_ms, error) != 0 ||
        number(body, "max_control_bytes", 1, INT64_MAX, &welcome->max_control_bytes, error) != 0 ||
        number(body, "max_batch_frames", 1, INT64_MAX, &welcome->max_batch_frames, error) != 0)
        return -1;
    return 0;
}

/* Reads what the client must know of an array: the frames' form, their places, what each may bring. */
static int read_array(span array, opened_facts *opened, sw_error *error) {
    static const struct {
        const char *name;
        int bytes;
    } dtypes[] = {{"bool", 1},   {"int8", 1},    {"int16", 2},   {"int32", 4},
                  {"int64", 8},  {"uint8", 1},   {"uint16", 2},  {"uint32", 4},
                  {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}};
    char dtype[16];
    span dimensions, value, fields;
    if (*array.at != '{') return wrong_field(error, "spec");
    if (text(array, "dtype", dtype, sizeof dtype, error) != 0) return -1;
    int itemsize = 0;
    for (int i = 0; i < 12; i++)
        if (strcmp(dtype, dtypes[i].name) == 0) opened->dtype = i + 1, itemsize = dtypes[i].bytes;
    if (itemsize == 0 || !find(array, "dimensions", &dimensions) || *dimensions.at != '[')
        return wrong_field(error, itemsize ? "dimensions" : "dtype");
    int64_t counts[12];
    int axes = 0;
    for (value = dimensions; next_of(dimensions, axes == 0, &value); axes++)
        if (axes == 12 || *value.at != '{' ||
            optional_number(value, "count", MAX_PLACES, 0, &counts[axes], error) != 0)
            return wrong_field(error, "dimensions");
    if (axes < 2) return wrong_field(error, "dimensions");
    opened->places = 1, opened->is_counted = 1;
    for (int i = axes - 3; i >= 0; i--) {
        if (counts[i] == 0 && i > 0) opened->is_counted = 0;
        /* a first axis without a count takes all places that are left, a further one 65,536 */
        int64_t count = counts[i] ? counts[i] : i > 0 ? 65536 : MAX_PLACES;
        opened->places = count > MAX_PLACES / opened->places ? MAX_PLACES : opened->places * count;
    }
    int64_t rows = counts[axes - 2], columns = counts[axes - 1], items = opened->slot_bytes / itemsize;
    if (opened->is_alone) {
        if (rows < 1 || columns < 1 || rows > UINT32_MAX || columns > UINT32_MAX || items / columns != rows ||
            rows * columns * itemsize != opened->slot_bytes)
            return fail(error, "protocol", NULL, "OPENED whose sizes contradict each other");
        opened->height = (uint32_t)rows, opened->width = (uint32_t)columns;
    }
    if (find(array, "frame_fields", &fields)) {
        if (*fields.at != '[') return wrong_field(error, "frame_fields");
        for (value = fields; next_of(fields, opened->field_count == 0, &value); opened->field_count++)
            if (opened->field_count == MAX_FIELDS) return wrong_field(error, "frame_fields");
    }
    if (find(array, "interleaved", &value) && *value.at == 't')
        return fail(error, "spec", "Give the stream an array without it, and send each channel as a frame",
                    "this client does not separate the channels of a colour camera");
    return optional_number(array, "frame_json_bytes", MAX_JSON_BYTES, 0, &opened->json_bytes, error);
}

static int read_spec(span spec, opened_facts *opened, sw_error *error) {
    span array, images, first = {NULL, NULL};
    if (*spec.at != '{') return wrong_field(error, "spec");
    int has_images = find(spec, "images", &images) && *images.at == '[' && next_of(images, 1, &first);
    opened->is_alone = !has_images && !find(spec, "plate", &array);
    if (!has_images && opened->is_alone && !find(spec, "array", &array))
        return read_array(spec, opened, error);
    if (!find(spec, "array", &array) && (!has_images || *first.at != '{' || !find(first, "array", &array)))
        return wrong_field(error, "array");
    if (read_array(array, opened, error) != 0) return -1;
    if (opened->is_alone) return 0;
    /* frames of several images travel as bytes, each in a slot of the size of the largest */
    if (opened->slot_bytes > UINT32_MAX) return wrong_field(error, "slot_bytes");
    opened->dtype = 6, opened->height = 1, opened->width = (uint32_t)opened->slot_bytes,
    opened->places = MAX_PLACES;
    return 0;
}

static int read_missing(span body, opened_facts *opened, sw_error *error) {
    span ranges, range, value;
    int64_t free_from = 0, pair[2];
    if (!find(body, "missing", &ranges) || *ranges.at != '[') return wrong_field(error, "missing");
    for (range = ranges; next_of(ranges, opened->missing_count == 0, &range); opened->missing_count++) {
        int numbers = 0;
        if (opened->missing_count == MAX_MISSING || *range.at != '[') return wrong_field(error, "missing");
        for (value = range; next_of(range, numbers == 0, &value); numbers++)
            if (numbers == 2 || as_number(value, free_from, opened->next_sequence - 1, &pair[numbers]) != 0)
                return wrong_field(error, "missing");
        if (numbers != 2 || pair[0] > pair[1]) return wrong_field(error, "missing");
        opened->missing[opened->missing_count][0] = (uint64_t)pair[0];
        opened->missing[opened->missing_count][1] = (uint64_t)pair[1];
        free_from = pair[1] + 1;
    }
    return 0;
}

/* Reads OPENED. `opened->path` is new memory, also if it fails. */
static int read_opened(sw_client *client, span body, opened_facts *opened, sw_error *error) {
    char transport[16], overload[16];
    span value;
    const char *wanted = client->transport == SW_SHM ? "shm" : "message";
    if (text(body, "transport", transport, sizeof transport, error) != 0 ||
        text(body, "overload", overload, sizeof overload, error) != 0 ||
        text(body, "acquisition", opened->identity, sizeof opened->identity, error) != 0 ||
        number(body, "credit_bytes", 1, INT64_MAX, &opened->credit_bytes, error) != 0 ||
        number(body, "ring_slots", 1, MAX_SLOTS, &opened->slot_count, error) != 0 ||
        number(body, "slot_bytes", 1, (int64_t)1 << 36, &opened->slot_bytes, error) != 0 ||
        number(body, "client_epoch", 1, UINT32_MAX, &opened->epoch, error) != 0 ||
        number(body, "next_sequence", 0, MAX_PLACES * 64, &opened->next_sequence, error) != 0 ||
        read_missing(body, opened, error) != 0)
        return -1;
    if (strcmp(transport, wanted) != 0) return wrong_field(error, "transport");
    if (!is_hex_32(opened->identity)) return wrong_field(error, "acquisition");
    if (client->transport == SW_SHM &&
        (text(body, "ring_token", opened->ring_token, sizeof opened->ring_token, error) != 0 ||
         !is_hex_32(opened->ring_token)))
        return wrong_field(error, "ring_token");
    opened->drops = strcmp(overload, "drop") == 0, opened->fails = strcmp(overload, "fail") == 0;
    if (!opened->drops && !opened->fails && strcmp(overload, "block") != 0)
        return wrong_field(error, "overload");
    if (opened->credit_bytes != opened->slot_count * opened->slot_bytes)
        return fail(error, "protocol", NULL, "OPENED whose sizes contradict each other");
    if (!find(body, "path", &value)) return wrong_field(error, "path");
    size_t size = (size_t)(value.end - value.at) + 3; /* one escaped byte is one of UTF-8, or none */
    if ((opened->path = malloc(size)) == NULL) return no_memory(error);
    if (copy_text(value, opened->path, size) != 0) return wrong_field(error, "path");
    return find(body, "spec", &value) ? read_spec(value, opened, error) : wrong_field(error, "spec");
}

/* Makes the acquisition ready, once its memory is there. Within `lock`. */
static int begin_session(sw_client *client, opened_facts *opened, unsigned char *memory, sw_error *error) {
    if (client->state == OPENING) {
        client->opened = *opened;
        client->path = opened->path, opened->path = NULL;
        if (begin_stream(client, error) != 0) {
            munmap(memory, (size_t)opened->credit_bytes);
            return -1;
        }
        client->state = LIVE;
    } else {
        client->opened = *opened;
        client->reconnects++;
        client->sent_before = client->sent_to;
    }
    if (memory != NULL) replace_memory(client, memory);
    memcpy(client->again, opened->missing, sizeof client->again);
    client->again_at = 0, client->again_count = opened->missing_count;
    client->flushed = 0, client->finish_sent = 0;
    pthread_cond_broadcast(&client->changed);
    return 0;
}

/* Handles OPENED, the answer to our OPEN. Fails only if the connection cannot go on; an acquisition that
 * cannot begin fails alone. */
static int take_opened(sw_client *client, uint64_t session, span body, sw_error *error) {
    opened_facts opened = {0};
    unsigned char *memory = NULL;
    int is_first = client->state == OPENING, done = read_opened(client, body, &opened, error);
    unsigned openings = client->openings;
    client->session = session, client->sent = 0, client->received = 1;
    if (done == 0 && !is_first &&
        (strcmp(opened.identity, client->opened.identity) != 0 || opened.epoch != client->opened.epoch ||
         opened.slot_count != client->opened.slot_count || opened.slot_bytes != client->opened.slot_bytes ||
         opened.field_count != client->opened.field_count || opened.json_bytes != client->opened.json_bytes ||
         opened.next_sequence != (int64_t)client->sent_to))
        done = fail(error, "resume", NULL, "the daemon resumed something else");
    if (done == 0 && client->transport == SW_SHM) {
        char path[sizeof client->welcome.ring_socket];
        strcpy(path, client->welcome.ring_socket);
        pthread_mutex_unlock(&client->lock);
        memory = fetch_ring(path, session, &opened, error);
        pthread_mutex_lock(&client->lock);
        done = memory == NULL ? -1 : 0;
    } else if (done == 0 && is_first) {
        memory = mmap(NULL, (size_t)opened.credit_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
        if (memory == MAP_FAILED) memory = NULL, done = no_memory(error);
    }
    int is_current = client->openings == openings && client->state == (is_first ? OPENING : LIVE);
    if (done == 0 && !is_current) { /* sw_open has given up meanwhile */
        if (memory != NULL) munmap(memory, (size_t)opened.credit_bytes);
        done = fail(error, "closed", NULL, "the caller of sw_open has given up");
    } else if (done == 0) {
        done = begin_session(client, &opened, memory, error);
    }
    free(opened.path);
    if (done == 0) return 0;
    if (is_code(error, "protocol") || (is_code(error, "session_lost") && !is_first)) return -1;
    send_end(client, session, error->code, error->message);
    client->session = 0; /* what the daemon still says there is for nobody */
    if (is_current) fail_stream(client, error);
    return 0;
}

static int take_acks(sw_client *client, const unsigned char *body, uint32_t count, sw_error *error) {
    int done = 0;
    for (uint32_t i = 0; i < count && done == 0; i++, body += RANGE_BYTES) {
        uint64_t level = get(body, 4), first = get(body + 8, 8), last = get(body + 16, 8);
        if (level < RELEASED || level > DURABLE || get(body + 4, 4) != 0 || first > last ||
            last >= client->sent_to)
            done = fail(error, "protocol", NULL,
                        "an impossible ACK range: level %" PRIu64 ", %" PRIu64 " to %" PRIu64, level, first,
                        last);
        else if (level == RELEASED) done = release(client, first, last, error);
        else if (level == STORED) client->stored = (int64_t)last + 1;
        else client->durable = (int64_t)last + 1;
    }
    drop_taken_out(client);
    pthread_cond_broadcast(&client->changed);
    return done;
}

/* Handles an ERROR of the session, or as the answer to a resumption (`is_answer`). */
static int take_problem(sw_client *client, span body, int is_answer, sw_error *error) {
    sw_error why;
    span receipt;
    int fatal;
    int64_t first, last;
    if (boolean(body, "fatal", &fatal, error) != 0 ||
        optional_number(body, "first", INT64_MAX, -1, &first, error) != 0 ||
        optional_number(body, "last", INT64_MAX, -1, &last, error) != 0)
        return -1;
    read_error(body, &why);
    int has_receipt = find(body, "receipt", &receipt);
    if (has_receipt && read_receipt(receipt, &client->receipt, error) != 0) return -1;
    if (!fatal && !is_answer) {
        if (last >= (int64_t)client->sent_to)
            return fail(error, "protocol", NULL, "a loss of frames that were not sent: up to %" PRId64, last);
        if (first >= 0 && last >= first) client->lost += last - first + 1;
        client->loss = why;
    } else if (is_answer && has_receipt && is_code(&why, "closed") && client->finish_sent) {
        /* it had been finished when the connection broke: this stands for all that was missed */
        client->stored = client->durable = (int64_t)client->sent_to;
        client->state = ENDED;
        pthread_cond_broadcast(&client->changed);
    } else {
        fail_stream(client, &why);
    }
    return 0;
}

static int out_of_turn(sw_error *error, int kind) {
    return fail(error, "protocol", NULL, "a message of kind %d came out of turn", kind);
}

/* Ends the time without a connection on which the acquisition goes on. */
static void be_whole(sw_client *client) {
    client->lost_since_ms = -1, client->has_refusal = 0, client->backoff_ms = BACKOFF_MS;
}

static int take_welcome(sw_client *client, span body, sw_error *error) {
    if (read_welcome(body, &client->welcome, error) != 0) return -1;
    client->is_welcomed = client->ever_welcomed = 1;
    client->heartbeat_due_ms = now_ms();
    pthread_cond_broadcast(&client->changed);
    if (client->state == LIVE) return send_open(client, error);
    if (client->state == OPENING && client->asked_of[0] &&
        strcmp(client->asked_of, client->welcome.instance) != 0) {
        /* it was sent to another process: nobody knows how far that came */
        fail(error, "session_lost", "It may be there, without a frame: reopen goes on with it",
             "the daemon was replaced while it opened the acquisition");
        fail_stream(client, error);
    }
    if (client->state != OPENING) be_whole(client);
    return 0;
}

/* Handles a message of the connection itself. */
static int take_of_connection(sw_client *client, int kind, span body, sw_error *error) {
    if (kind == HEARTBEAT) return 0;
    if (kind == WELCOME && !client->is_welcomed) return take_welcome(client, body, error);
    if (kind != ERROR) return out_of_turn(error, kind);
    int fatal;
    int64_t request;
    if (boolean(body, "fatal", &fatal, error) != 0 ||
        optional_number(body, "request", INT64_MAX, -1, &request, error) != 0)
        return -1;
    if (fatal) {
        read_error(body, error);
        return -1;
    }
    if (!client->is_asked || request != client->request) return 0;
    client->is_asked = 0;
    be_whole(client);
    if (client->is_resuming && client->state == LIVE) return take_problem(client, body, 1, error);
    if (!client->is_resuming && client->state == OPENING) {
        read_error(body, error);
        fail_stream(client, error);
    }
    return 0;
}

static int take_of_session(sw_client *client, int kind, uint32_t count, const unsigned char *bytes, span body,
                           sw_error *error) {
    span receipt;
    if (client->state == ENDED) return 0;
    if (kind == ERROR) return take_problem(client, body, 0, error);
    if (kind == RECEIPT && (client->finish_sent || client->state == FAILED)) {
        if (!find(body, "receipt", &receipt)) return wrong_field(error, "receipt");
        if (read_receipt(receipt, &client->receipt, error) != 0) return -1;
        if (client->state == LIVE) client->state = ENDED;
        pthread_cond_broadcast(&client->changed);
        return 0;
    }
    if (client->state == FAILED) return 0;
    if (kind == ACK) return take_acks(client, bytes, count, error);
    return out_of_turn(error, kind);
}

/* The kind that a header says, if its counts and the length of the body are possible; else -1. */
static int check_header(const unsigned char *header, size_t length, uint64_t body_bytes, sw_error *error) {
    if (length < 8 || memcmp(header, "SWR1", 4) != 0)
        return fail(error, "protocol", NULL, "not a shardwright message");
    if (get(header + 4, 2) != VERSION)
        return fail(error, "version", "Use a client and a daemon of the same protocol version",
                    "the daemon speaks version %" PRIu64 " of the protocol, not %d", get(header + 4, 2),
                    VERSION);
    if (length != HEADER_BYTES) return fail(error, "protocol", NULL, "wrong header length");
    int kind = header[6], has_body = kind != HEARTBEAT;
    uint64_t count = get(header + 24, 4), parts = get(header + 28, 4);
    int good = kind >= HELLO && kind <= ADD_IMAGE && header[7] == 0 && get(header + 40, 8) == 0 &&
               parts == (uint64_t)has_body && get(header + 32, 8) == body_bytes;
    if (kind == ACK)
        good = good && count >= 1 && count <= MAX_ACK_RANGES && body_bytes == count * RANGE_BYTES;
    else
        good = good && count == 0 &&
               (has_body ? body_bytes >= 2 && body_bytes <= MAX_CONTROL_BYTES : body_bytes == 0);
    return good ? kind
                : fail(error, "protocol", NULL, "a message of kind %d with impossible counts or lengths",
                       kind);
}

static int take_message(sw_client *client, const unsigned char *header, size_t length,
                        const unsigned char *bytes, size_t body_bytes, sw_error *error) {
    span body = {(const char *)bytes, (const char *)bytes + body_bytes};
    int kind = check_header(header, length, body_bytes, error);
    if (kind < 0) {
        /* an ERROR keeps its place in every version: the daemon may say more about ours */
        if (is_code(error, "version") && length >= 7 && header[6] == ERROR && is_object(&body))
            read_error(body, error);
        return -1;
    }
    if (kind != ACK && kind != HEARTBEAT && !is_object(&body))
        return fail(error, "protocol", NULL, "a control body that is no JSON object");
    uint64_t session = get(header + 8, 8), sequence = get(header + 16, 8);
    int64_t request;
    if (session == 0 || session == client->session) {
        if (sequence != (session == 0 ? client->received_0++ : client->received++))
            return fail(error, "protocol", NULL, "messages are missing or repeated");
        return session == 0
                   ? take_of_connection(client, kind, body, error)
                   : take_of_session(client, kind, get(header + 24, 4) & UINT32_MAX, bytes, body, error);
    }
    if (kind != OPENED) return 0; /* of a session that has ended */
    if (number(body, "request", 0, INT64_MAX, &request, error) != 0) return -1;
    if (request >= client->next_request || sequence != 0)
        return fail(error, "protocol", NULL, "OPENED for a request that was not made");
    int is_awaited = client->is_asked && request == client->request &&
                     client->state == (client->is_resuming ? LIVE : OPENING);
    if (!is_awaited) { /* sw_open has given up */
        send_end(client, session, "closed", "the caller of sw_open has given up");
        return 0;
    }
    client->is_asked = 0;
    int done = take_opened(client, session, body, error);
    if (done == 0) be_whole(client);
    return done;
}

/* Receives a message. Returns 0 when there is none. */
static int receive_message(sw_client *client, sw_error *error) {
    zmq_msg_t parts[3];
    int count = 0, more = 1, done = 0;
    while (more && count < 3) {
        zmq_msg_init(&parts[count]);
        if (zmq_msg_recv(&parts[count], client->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&parts[count]);
            break;
        }
        more = zmq_msg_more(&parts[count++]);
    }
    if (count == 3) {
        done = fail(error, "protocol", NULL, "a message of more parts than the daemon sends");
    } else if (count > 0) {
        /* copied: what is read as bytes must be aligned for no one, and JSON needs a byte behind it */
        size_t length = count == 2 ? zmq_msg_size(&parts[1]) : 0;
        unsigned char *body = malloc(length + 1);
        if (body == NULL) done = no_memory(error);
        else {
            if (length > 0) memcpy(body, zmq_msg_data(&parts[1]), length);
            body[length] = 0;
            client->heard_ms = now_ms();
            done =
                take_message(client, zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]), body, length, error);
        }
        free(body);
    }
    for (int i = 0; i < count; i++) zmq_msg_close(&parts[i]);
    return done < 0 ? -1 : count > 0;
}

/* --- connections come and go --- */

static int no_handshake(const sw_client *client, sw_error *error) {
    return fail(error, "access",
                client->has_keys ? "Check the daemon's public key; one with ingest.insecure takes no keys"
                                 : "If the daemon demands keys, give it secret_key and daemon_key",
                "the handshake with %s failed", client->endpoint);
}

/* Fails once the connection was cut: ZeroMQ would go on under another identity, which the daemon does not
 * know. */
static int check_connection(sw_client *client, sw_error *error) {
    for (;;) {
        unsigned char event[6], address[256];
        uint16_t what;
        if (zmq_recv(client->monitor, event, sizeof event, ZMQ_DONTWAIT) < 0) return 0;
        zmq_recv(client->monitor, address, sizeof address, ZMQ_DONTWAIT); /* its second part */
        memcpy(&what, event, sizeof what);
        if (what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) client->handshake_done = 1;
        else if (what == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            return fail(error, "access",
                        "Put its public key into the folder that ingest.curve.clients of the daemon names",
                        "the daemon does not know this client's key %s", client->public_key);
        else if (what == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) return no_handshake(client, error);
        else if (client->handshake_done)
            return fail(error, "session_lost", NULL, "the daemon closed the connection %s", client->endpoint);
        else if (++client->cuts >= MAX_CUTS) /* nothing was sent yet, and ZeroMQ tries again */
            return no_handshake(client, error);
    }
}

static void disconnect(sw_client *client, int linger_ms) {
    if (client->monitor != NULL) {
        zmq_socket_monitor(client->socket, NULL, 0);
        zmq_close(client->monitor);
    }
    if (client->socket != NULL) {
        zmq_setsockopt(client->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(client->socket);
    }
    client->socket = client->monitor = NULL;
    client->is_welcomed = client->is_asked = 0;
    client->session = 0;
}

static int set_number(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int connect_daemon(sw_client *client, sw_error *error) {
    char monitor[48], host[256] = "";
    const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_DISCONNECTED;
    const int zero = 0;
    int64_t most = MAX_MESSAGE_BYTES;
    client->handshake_done = client->cuts = 0;
    client->sent_0 = client->received_0 = 0;
    client->started_ms = client->heard_ms = now_ms();
    client->socket = zmq_socket(client->context, ZMQ_DEALER);
    client->monitor = zmq_socket(client->context, ZMQ_PAIR);
    snprintf(monitor, sizeof monitor, "inproc://monitor-%d", client->monitors++);
    if (client->socket == NULL || client->monitor == NULL) return no_memory(error);
    /* No limit of ZeroMQ's own: credit bounds what may wait, and a send that waited would keep heartbeats
     * back. */
    set_number(client->socket, ZMQ_SNDHWM, 0);
    set_number(client->socket, ZMQ_LINGER, 0);
    set_number(client->socket, ZMQ_RECONNECT_IVL, BACKOFF_MS);
    set_number(client->socket, ZMQ_RECONNECT_IVL_MAX, MAX_BACKOFF_MS);
    zmq_setsockopt(client->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (client->has_keys &&
        (zmq_setsockopt(client->socket, ZMQ_CURVE_SERVERKEY, client->daemon_key, 41) != 0 ||
         zmq_setsockopt(client->socket, ZMQ_CURVE_PUBLICKEY, client->public_key, 41) != 0 ||
         zmq_setsockopt(client->socket, ZMQ_CURVE_SECRETKEY, client->secret_key, 41) != 0))
        return fail(error, "config", "Debian's libzmq has CURVE",
                    "these keys, or this libzmq, cannot be used for CURVE");
    zmq_setsockopt(client->monitor, ZMQ_LINGER, &zero, sizeof zero);
    if (zmq_socket_monitor(client->socket, monitor, events) != 0 ||
        zmq_connect(client->monitor, monitor) != 0)
        return fail(error, "config", NULL, "ZeroMQ makes no monitor: %s", zmq_strerror(errno));
    if (zmq_connect(client->socket, client->endpoint) != 0)
        return fail(error, "config", "Use tcp://HOST:PORT or ipc://PATH",
                    "not an endpoint to connect to: %s (%s)", client->endpoint, zmq_strerror(errno));
    builder body = {0};
    gethostname(host, sizeof host - 1);
    append_text(&body, "{\"software\":\"shardwright-c\",\"host\":");
    append_string(&body, is_utf8((span){host, host + strlen(host)}) ? host : "");
    append_format(&body, ",\"pid\":%ld}", (long)getpid());
    return send_control(client, HELLO, 0, &body, error);
}

/* Drops the connection after an error; the acquisition keeps what was not released. Returns -1 when no other
 * connection is to be tried: `why` then says why it is over. */
static int lose(sw_client *client, sw_error *why) {
    int64_t now = now_ms();
    int is_lost = is_code(why, "session_lost");
    /* Once a connection was good: earlier ones of ours may still be counted, and a list of keys may be
     * changing. */
    int may_be_mended =
        is_lost || ((is_code(why, "budget") || is_code(why, "access")) && client->lost_since_ms >= 0);
    if (!may_be_mended) return -1;
    if (client->ever_welcomed) {
        if (client->reconnect_timeout_ms == 0) return -1;
        if (!is_lost) client->has_refusal = 1, client->refusal = *why;
        if (client->lost_since_ms < 0) client->lost_since_ms = now;
        else if (now - client->lost_since_ms > client->reconnect_timeout_ms) {
            if (client->has_refusal) *why = client->refusal;
            return -1;
        }
    }
    if (client->state == OPENING && client->is_asked && !client->asked_of[0]) fail_stream(client, why);
    disconnect(client, 0);
    client->next_try_ms = now + client->backoff_ms;
    client->backoff_ms = client->backoff_ms * 2 < MAX_BACKOFF_MS ? client->backoff_ms * 2 : MAX_BACKOFF_MS;
    return 0;
}

/* Sends heartbeats, and fails when the daemon was silent for too long. */
static int keep_alive(sw_client *client, sw_error *error) {
    int64_t now = now_ms();
    if (!client->is_welcomed) {
        if (!client->ever_welcomed || client->lost_since_ms < 0) return 0; /* sw_connect has its own clock */
        int64_t left = client->reconnect_timeout_ms - (client->started_ms - client->lost_since_ms);
        int64_t patience = left < LAST_TRY_MS ? LAST_TRY_MS : left;
        if (patience > client->welcome.session_timeout_ms) patience = client->welcome.session_timeout_ms;
        if (now - client->started_ms <= patience) return 0;
        return fail(error, "session_lost", "Is `shardwright serve` running there?",
                    "no daemon answered at %s", client->endpoint);
    }
    if (now >= client->heartbeat_due_ms) {
        client->heartbeat_due_ms = now + client->welcome.heartbeat_ms;
        if (send_message(client, HEARTBEAT, 0, NULL, 0, 0, 0, 0, error) != 0) return -1;
    }
    if (now - client->heard_ms > client->welcome.session_timeout_ms)
        return fail(error, "session_lost", NULL, "the daemon stopped answering: %" PRId64 " ms of silence",
                    now - client->heard_ms);
    return 0;
}

/* Waits for the daemon, a call of the program, or the time of the next step. Without `lock`. */
static void wait_for_event(sw_client *client, int64_t due_ms) {
    zmq_pollitem_t items[3] = {{NULL, client->wake_fd, ZMQ_POLLIN, 0},
                               {client->socket, 0, ZMQ_POLLIN, 0},
                               {client->monitor, 0, ZMQ_POLLIN, 0}};
    int64_t left_ms = due_ms - now_ms();
    zmq_poll(items, client->socket ? 3 : 1, left_ms < 0 ? 0 : (long)(left_ms > 1000 ? 1000 : left_ms));
    uint64_t woken;
    ssize_t ignored = read(client->wake_fd, &woken, sizeof woken); /* does not block: there may be nothing */
    (void)ignored;
}

/* One round over a connection; -1 when it cannot go on. Within `lock`. */
static int round_of(sw_client *client, sw_error *error) {
    int more = 1;
    for (int i = 0; i < ROUND_MESSAGES && (more = receive_message(client, error)) > 0; i++) continue;
    if (more < 0 || check_connection(client, error) != 0) return -1;
    return send_ready(client, error) != 0 || keep_alive(client, error) != 0 ? -1 : 0;
}

static void *run_client(void *argument) {
    sw_client *client = argument;
    sw_error why;
    int is_over = 0;
    pthread_mutex_lock(&client->lock);
    while (!client->stopping && !is_over) {
        int done = 0;
        if (client->socket == NULL && now_ms() >= client->next_try_ms) done = connect_daemon(client, &why);
        if (done == 0 && client->socket != NULL) done = round_of(client, &why);
        if (done != 0) {
            is_over = lose(client, &why) != 0;
            continue;
        }
        int64_t due = client->socket == NULL ? client->next_try_ms
                      : client->is_welcomed  ? client->heartbeat_due_ms
                                             : now_ms() + 100;
        pthread_mutex_unlock(&client->lock);
        wait_for_event(client, due);
        pthread_mutex_lock(&client->lock);
    }
    if (!is_over) fail(&why, "closed", NULL, "the connection was closed");
    if (client->is_welcomed)
        send_end(client, 0, is_over ? why.code : "closed", is_over ? why.message : "the client leaves");
    disconnect(client, GOODBYE_LINGER_MS);
    client->is_over = 1;
    client->over = why;
    fail_stream(client, &why);
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* --- the program's calls --- */

void sw_options_init(sw_options *options) {
    memset(options, 0, sizeof *options);
    options->timeout_ms = 10000;
    options->reconnect_timeout_ms = 60000;
}

void sw_frame_init(sw_frame *frame) {
    memset(frame, 0, sizeof *frame);
    frame->frame_id = frame->place = -1;
    frame->delta_t = frame->exposure_time = frame->position_x = frame->position_y = frame->position_z = NAN;
}

int sw_read_key(const char *path, const char *field, char key[41], sw_error *error) {
    int is_secret = strcmp(field, "secret-key") == 0, is_found = 0;
    struct stat facts;
    char line[512];
    key[0] = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    FILE *lines = file < 0 ? NULL : fdopen(file, "r");
    if (lines == NULL || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        if (lines != NULL) fclose(lines);
        else if (file >= 0) close(file);
        return fail(error, "config", NULL, "cannot read the key file %.400s", path);
    }
    for (int i = 0; i < 1000 && !is_found && fgets(line, sizeof line, lines) != NULL; i++) {
        char *at = line + strspn(line, " \t");
        if (strncmp(at, field, strlen(field)) != 0) continue;
        at += strlen(field), at += strspn(at, " \t");
        if (*at++ != '=') continue;
        at += strspn(at, " \t\"'");
        size_t length = strcspn(at, " \t\"'\r\n");
        if ((is_found = length == 40)) memcpy(key, at, 40), key[40] = 0;
    }
    memset(line, 0, sizeof line);
    fclose(lines);
    unsigned char bytes[32];
    if (!is_found || zmq_z85_decode(bytes, key) == NULL)
        return fail(error, "config", "`shardwright keygen NAME` makes a pair", "%.400s holds no usable %.20s",
                    path, field);
    if (facts.st_mode & (is_secret ? 0077 : 0002))
        return fail(error, "config", is_secret ? "Take the others' rights: chmod go-rwx" : "chmod o-w",
                    "the key file %.400s is open to others", path);
    return 0;
}

/* Whether the daemon's shared memory can be used: it runs under the same kernel, and its socket is within
 * reach. */
static int may_share(const welcome_facts *welcome) {
    char boot_id[65] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL) return 0;
    if (fgets(boot_id, sizeof boot_id, file) != NULL) boot_id[strcspn(boot_id, "\n")] = 0;
    fclose(file);
    if (!boot_id[0] || strcmp(boot_id, welcome->boot_id) != 0 || !welcome->ring_socket[0]) return 0;
    int connection = connect_to(welcome->ring_socket, NULL);
    if (connection >= 0) close(connection);
    return connection >= 0;
}

/* Says why nobody answered. ZeroMQ tries again in silence, whatever the reason: a local socket is asked. */
static int no_answer(const char *endpoint, int timeout_ms, sw_error *error) {
    if (strncmp(endpoint, "ipc://", 6) == 0 && access(endpoint + 6, W_OK) != 0 && errno == EACCES)
        return fail(error, "access", "Ask for the group of the daemon's socket", "permission denied on %s",
                    endpoint + 6);
    return fail(error, "session_lost", "Is `shardwright serve` running there?",
                "no daemon answered at %s within %d ms", endpoint, timeout_ms);
}

static void free_client(sw_client *client) {
    while (client->context != NULL && zmq_ctx_term(client->context) != 0 && errno == EINTR) continue;
    forget_stream(client);
    if (client->wake_fd >= 0) close(client->wake_fd);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    memset(client->secret_key, 0, sizeof client->secret_key);
    free(client->path), free(client->stream), free(client->endpoint), free(client);
}

static int start_thread(sw_client *client, sw_error *error) {
    sigset_t all, before;
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&client->thread, NULL, run_client, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? no_memory(error) : 0;
}

static int take_options(sw_client *client, const sw_options *options, sw_error *error) {
    client->transport = options->transport;
    client->reconnect_timeout_ms = options->reconnect_timeout_ms;
    if (strncmp(client->endpoint, "tcp://", 6) != 0 && strncmp(client->endpoint, "ipc://", 6) != 0)
        return fail(error, "config", "Use tcp://HOST:PORT or ipc://PATH",
                    "not an endpoint to connect to: %.200s", client->endpoint);
    if (options->timeout_ms < 0 || options->reconnect_timeout_ms < 0)
        return fail(error, "config", "Use milliseconds, 0 or more", "a timeout below 0");
    if ((!options->secret_key && !options->daemon_key) || client->endpoint[0] != 't') return 0;
    if (!options->secret_key || !options->daemon_key || strlen(options->secret_key) != 40 ||
        strlen(options->daemon_key) != 40)
        return fail(error, "config", "sw_read_key reads both", "a client with keys has two of 40 characters");
    strcpy(client->secret_key, options->secret_key);
    strcpy(client->daemon_key, options->daemon_key);
    if (zmq_curve_public(client->public_key, client->secret_key) != 0)
        return fail(error, "config", "`shardwright keygen NAME` makes a pair",
                    "the secret key cannot be used");
    client->has_keys = 1;
    return 0;
}

sw_client *sw_connect(const char *endpoint, const sw_options *options, sw_error *error) {
    sw_options usual;
    sw_options_init(&usual);
    if (options == NULL) options = &usual;
    sw_client *client = calloc(1, sizeof *client);
    if (client == NULL) return no_memory(error), NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&client->lock, NULL);
    client->lost_since_ms = -1, client->backoff_ms = BACKOFF_MS;
    client->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->endpoint = strdup(endpoint);
    client->context = zmq_ctx_new();
    int64_t due = now_ms() + options->timeout_ms;
    int done = client->wake_fd < 0 || !client->endpoint || !client->context ? no_memory(error) : 0;
    if (done != 0 || take_options(client, options, error) != 0 || start_thread(client, error) != 0) {
        free_client(client);
        return NULL;
    }
    pthread_mutex_lock(&client->lock);
    while (!client->ever_welcomed && !client->is_over && wait_for_change(client, due)) continue;
    welcome_facts welcome = client->welcome;
    if (client->is_over) done = fail_as(error, &client->over);
    else if (!client->ever_welcomed) done = no_answer(client->endpoint, options->timeout_ms, error);
    pthread_mutex_unlock(&client->lock);
    if (done == 0 && client->transport != SW_MESSAGE) {
        int shares = may_share(&welcome);
        if (!shares && client->transport == SW_SHM)
            done = fail(error, "config", "Take SW_AUTO, or run the daemon on this machine",
                        "shared memory cannot be used");
        client->transport = shares ? SW_SHM : SW_MESSAGE; /* which the thread reads once there is a stream */
    }
    if (done == 0) return client;
    sw_close(client);
    return NULL;
}

void sw_close(sw_client *client) {
    if (client == NULL) return;
    pthread_mutex_lock(&client->lock);
    client->stopping = 1;
    pthread_mutex_unlock(&client->lock);
    wake(client);
    pthread_join(client->thread, NULL);
    free_client(client);
}

static int build_open(sw_client *client, const sw_acquisition *what, builder *body, sw_error *error) {
    unsigned char token[16];
    span spec = {what->spec, what->spec ? what->spec + strlen(what->spec) : NULL};
    const char *name = what->name ? what->name : ""; /* what is armed for the stream */
    if ((what->name == NULL && (what->stream == NULL || what->spec != NULL || what->reopen)) ||
        !is_utf8((span){name, name + strlen(name)}))
        return fail(error, "invalid_name", "Give its stream alone, if it is armed",
                    "an acquisition needs a name in UTF-8");
    if (what->spec != NULL && !is_object(&spec))
        return fail(error, "spec", NULL, "the spec is no JSON object");
    if (what->stream != NULL && !is_utf8((span){what->stream, what->stream + strlen(what->stream)}))
        return fail(error, "unknown_stream", NULL, "the name of the stream is not UTF-8");
    if (getrandom(token, sizeof token, 0) != (ssize_t)sizeof token)
        return fail(error, "internal", NULL, "the system has no random numbers");
    append_text(body, ",\"name\":");
    append_string(body, name);
    append_text(body, ",\"spec\":");
    append_bytes(body, what->spec ? spec.at : "null", what->spec ? (size_t)(spec.end - spec.at) : 4);
    append_text(body, ",\"stream\":");
    append_string(body, what->stream);
    append_format(body, ",\"transport\":\"%s\",\"resume\":null",
                  client->transport == SW_SHM ? "shm" : "message");
    append_format(body, ",\"reopen\":%s,\"frames_expected\":", what->reopen ? "true" : "false");
    if (what->frames_expected > 0) append_format(body, "%" PRId64, what->frames_expected);
    else append_text(body, "null");
    append_text(body, ",\"opening\":\"");
    for (int i = 0; i < 16; i++) append_format(body, "%02x", token[i]);
    append_text(body, "\"}");
    if (body->is_full) return no_memory(error);
    if ((int64_t)body->length + 40 > client->welcome.max_control_bytes)
        return fail(error, "spec", NULL, "the spec is too long: the daemon takes %" PRId64 " bytes",
                    client->welcome.max_control_bytes);
    return 0;
}

/* Forgets the last acquisition and asks for the next one. Within `lock`. */
static int begin_opening(sw_client *client, const sw_acquisition *what, sw_error *error) {
    builder body = {0};
    if (client->is_over) return fail_as(error, &client->over);
    if (client->state == OPENING || client->state == LIVE)
        return fail(error, "closed", "Call sw_finish first, or use a client for each camera",
                    "an acquisition is open");
    char *stream = what->stream ? strdup(what->stream) : NULL;
    if ((what->stream && !stream) || build_open(client, what, &body, error) != 0) {
        free(body.at), free(stream);
        return what->stream && !stream ? no_memory(error) : -1;
    }
    while (client->copying[0] + client->copying[1] > 0) pthread_cond_wait(&client->changed, &client->lock);
    forget_stream(client);
    free(client->stream), free(client->path);
    client->stream = stream, client->path = NULL;
    client->open_body = body.at;
    client->session = 0, client->is_asked = 0, client->asked_of[0] = 0;
    memset(&client->opened, 0, sizeof client->opened);
    memset(&client->receipt, 0, sizeof client->receipt);
    memset(&client->loss, 0, sizeof client->loss);
    client->appended = client->dropped = client->lost = client->stored = client->durable = 0;
    client->next_sequence = client->sent_to = client->flush_to = client->flushed = 0;
    client->finishing = client->overloaded = client->reconnects = client->finish_sent = 0;
    client->state = OPENING, client->openings++;
    return 0;
}

int sw_open(sw_client *client, const sw_acquisition *acquisition, int timeout_ms, sw_error *error) {
    int64_t due = now_ms() + timeout_ms;
    pthread_mutex_lock(&client->lock);
    int done = begin_opening(client, acquisition, error);
    if (done == 0) {
        wake(client);
        while (client->state == OPENING && wait_for_change(client, due)) continue;
        if (client->state == OPENING) {
            client->state = NO_STREAM;
            done = fail(error, "timed_out", "It may be made all the same: reopen goes on with it",
                        "the daemon has not opened the acquisition within %d ms", timeout_ms);
        } else if (client->state == FAILED) {
            done = fail_as(error, &client->why);
        }
    }
    pthread_mutex_unlock(&client->lock);
    return done;
}

const char *sw_path(sw_client *client) {
    pthread_mutex_lock(&client->lock);
    const char *path = client->path ? client->path : "";
    pthread_mutex_unlock(&client->lock);
    return path;
}

void sw_get_progress(sw_client *client, sw_progress *progress, sw_error *loss) {
    pthread_mutex_lock(&client->lock);
    *progress = (sw_progress){client->appended,
                              client->dropped,
                              client->stored,
                              client->durable,
                              client->lost,
                              (int64_t)client->next_sequence,
                              client->reconnects,
                              client->transport == SW_SHM,
                              (size_t)client->opened.slot_bytes};
    if (loss != NULL) *loss = client->loss;
    pthread_mutex_unlock(&client->lock);
}

/* Fails unless frames may come: what ended the acquisition, or `closed`. Within `lock`. */
static int check_live(const sw_client *client, sw_error *error) {
    if (client->state == FAILED) return fail_as(error, &client->why);
    if (client->state != LIVE || client->finishing)
        return fail(error, "closed", "Open the next one for more frames", "no acquisition is open");
    if (client->overloaded)
        return fail(error, "overload", "Call sw_finish: the frames that were sent are sealed",
                    "the daemon could not keep up, and the overload policy is to fail");
    return 0;
}

/* Finds the position of the next frame. */
static int place_frame(const sw_client *client, const sw_frame *frame, int64_t *position, sw_error *error) {
    const opened_facts *opened = &client->opened;
    int64_t place = frame->place < 0 ? (int64_t)client->next_sequence : frame->place;
    if (frame->place < 0 && !(opened->is_alone && opened->is_counted))
        return fail(error, "frame_index",
                    "Only of one image, whose axes but the first have counts, may it be left out",
                    "the frame needs a place");
    if (place >= opened->places)
        return fail(error, "frame_index", NULL, "place %" PRId64 " is outside the array, which has %" PRId64,
                    place, opened->places);
    if (frame->image < 0 || frame->image >= (opened->is_alone ? 1 : MAX_IMAGES))
        return fail(error, "unknown_image", NULL, "image %" PRId64 " cannot be", frame->image);
    *position = frame->image * MAX_PLACES + place;
    return 0;
}

static int check_frame(const sw_client *client, size_t bytes, const sw_frame *frame, span *json,
                       sw_error *error) {
    static const char left_out[] = "{}"; /* which the daemon counts */
    const opened_facts *opened = &client->opened;
    if (opened->is_alone ? bytes != (size_t)opened->slot_bytes
                         : bytes == 0 || bytes > (size_t)opened->slot_bytes)
        return fail(error, "frame_shape", NULL, "a frame of %zu bytes, where each has %" PRId64, bytes,
                    opened->slot_bytes);
    if (frame->frame_id < -1) return fail(error, "frame_index", NULL, "a frame id below -1");
    if (frame->field_count > (size_t)opened->field_count)
        return fail(error, "metadata", "Name them in frame_fields of the spec",
                    "more fields than the %" PRId64 " of the array", opened->field_count);
    *json = (span){frame->json, frame->json ? frame->json + strlen(frame->json) : NULL};
    if (frame->json == NULL) return 0;
    if (opened->json_bytes == 0)
        return fail(error, "metadata", "Give the spec frame_json_bytes", "the array takes no JSON of frames");
    if (!is_object(json)) return fail(error, "metadata", NULL, "metadata that are no JSON object in UTF-8");
    if (skip_space(json->at + 1, json->end) + 1 == json->end)
        json->end = json->at; /* an empty one says nothing */
    else if (json->end - json->at > opened->json_bytes) *json = (span){left_out, left_out + 2};
    return 0;
}

/* Copies a frame into a slot; again if the memory was replaced meanwhile. Within `lock`, but for the copy. */
static void copy_frame(sw_client *client, uint32_t slot, const void *pixels, size_t bytes) {
    unsigned generation;
    do {
        generation = client->generation;
        unsigned char *to = client->memory + slot * (size_t)client->opened.slot_bytes;
        client->copying[generation & 1]++;
        pthread_mutex_unlock(&client->lock);
        memcpy(to, pixels, bytes);
        pthread_mutex_lock(&client->lock);
        client->copying[generation & 1]--;
        pthread_cond_broadcast(&client->changed);
    } while (generation != client->generation);
}

/* Adds a frame for which there is no slot: its descriptor, or beyond the bound only its number. */
static int drop_frame(sw_client *client, const sw_frame *frame, moment given, int64_t position, span json) {
    uint32_t record = NOT_HELD;
    if (client->free_drop_count > 0) {
        record = client->free_drops[--client->free_drop_count];
        describe(client, record_of(client, record), client->next_sequence, frame, given, position,
                 FRAME_DROPPED, json);
    }
    client->dropped++;
    number_frame(client, record);
    return SW_DROPPED;
}

static int append_frame(sw_client *client, const void *pixels, size_t bytes, const sw_frame *frame,
                        int64_t due, sw_error *error) {
    span json;
    int64_t position;
    /* before any wait, and before the copy */
    moment given = {clock_ns(CLOCK_REALTIME), clock_ns(CLOCK_MONOTONIC)};
    for (;;) {
        if (check_live(client, error) != 0 || check_frame(client, bytes, frame, &json, error) != 0 ||
            place_frame(client, frame, &position, error) != 0)
            return -1;
        if (client->free_slot_count > 0) break;
        if (client->opened.drops) return drop_frame(client, frame, given, position, json);
        if (client->opened.fails) {
            client->overloaded = 1;
            return check_live(client, error);
        }
        if (!wait_for_change(client, due) && client->free_slot_count == 0)
            return fail(error, "timed_out", "Try again: the frame was not taken",
                        "the daemon has released no frame in time");
    }
    uint32_t slot = client->free_slots[client->first_free_slot];
    client->first_free_slot = (client->first_free_slot + 1) % (size_t)client->opened.slot_count;
    client->free_slot_count--;
    copy_frame(client, slot, pixels, bytes);
    /* other threads may have come in between: it is numbered, and placed, only now */
    int done =
        client->state == FAILED ? fail_as(error, &client->why) : place_frame(client, frame, &position, error);
    if (done != 0) {
        free_slot(client, slot);
        wake(client); /* the end may wait for this copy */
        return done;
    }
    describe(client, record_of(client, slot), client->next_sequence, frame, given, position, 0, json);
    client->appended++;
    number_frame(client, slot);
    return 0;
}

int sw_append(sw_client *client, const void *pixels, size_t bytes, const sw_frame *frame, int timeout_ms,
              sw_error *error) {
    sw_frame nothing;
    sw_frame_init(&nothing);
    int64_t due = now_ms() + timeout_ms;
    pthread_mutex_lock(&client->lock);
    int done = append_frame(client, pixels, bytes, frame ? frame : &nothing, due, error);
    pthread_mutex_unlock(&client->lock);
    return done;
}

int sw_flush(sw_client *client, int timeout_ms, sw_error *error) {
    int64_t due = now_ms() + timeout_ms;
    pthread_mutex_lock(&client->lock);
    int done = check_live(client, error), is_late = 0;
    uint64_t target = client->next_sequence;
    if (done == 0 && client->flush_to < target) client->flush_to = target;
    wake(client);
    while (done == 0 && client->state == LIVE && (uint64_t)client->durable < target && !is_late)
        is_late = !wait_for_change(client, due);
    if (done == 0 && client->state == FAILED) done = fail_as(error, &client->why);
    else if (done == 0 && client->state == LIVE && (uint64_t)client->durable < target)
        done = fail(error, "timed_out", "Syncing continues; see sw_get_progress",
                    "%" PRId64 " of %" PRIu64 " frames are durable", client->durable, target);
    pthread_mutex_unlock(&client->lock);
    return done;
}

int sw_finish(sw_client *client, sw_receipt *receipt, int timeout_ms, sw_error *error) {
    int64_t due = now_ms() + timeout_ms;
    pthread_mutex_lock(&client->lock);
    client->finishing = 1;
    pthread_cond_broadcast(&client->changed); /* calls that wait for room end */
    wake(client);
    while (client->state == LIVE && wait_for_change(client, due)) continue;
    if (receipt != NULL) *receipt = client->receipt;
    int done = 0;
    if (client->state == FAILED) done = fail_as(error, &client->why);
    else if (client->state == LIVE)
        done =
            fail(error, "timed_out", "Call sw_finish again", "the daemon has not ended the acquisition yet");
    else if (client->state != ENDED) done = fail(error, "closed", NULL, "no acquisition is open");
    pthread_mutex_unlock(&client->lock);
    return done;
}
