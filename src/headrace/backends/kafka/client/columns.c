/* Moves records between librdkafka and the columns of an Arrow batch, without a Python object for
   each.

   native.py loads this library, and gives it the functions of the librdkafka that the Kafka client
   itself has loaded. Only its public interface is used, which the declarations below describe.
   Nothing here allocates memory: the caller gives the buffers, after it has got their sizes. */

#ifndef SOURCE
#error "-DSOURCE=the CRC-32 of this file: a library of another source is not used"
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

const uint32_t headrace_source = SOURCE;

typedef struct client client;
typedef struct conf conf;
typedef struct queue queue;
typedef struct topic topic;
typedef struct headers headers;
typedef struct error error;

typedef struct {
    int err;
    topic *of;
    int32_t partition;
    void *data;
    size_t data_bytes;
    void *key;
    size_t key_bytes;
    int64_t offset;
    void *own;
} message;

typedef struct {
    int kind;
    union {
        topic *of;
        int number;
        int32_t partition;
        int64_t time_ms;
        struct {
            const void *start;
            size_t bytes;
        } memory;
        char room[64];
    } is;
} argument;

enum { OF = 2, PARTITION = 3, DATA = 4, KEY = 5, HOW = 7, TIME = 8 };
enum { COPIED = 2 };

enum { FAILED = -196, NO_HEADERS = -156 };

enum { CONSUMER = 1 };

typedef int (*when_made)(client *, const conf *, void *, char *, size_t);
typedef void (*when_wrong)(client *, int code, const char *why, void *);

static struct {
    ptrdiff_t (*consume)(queue *, int timeout_ms, message **into, size_t most);
    int64_t (*timestamp)(const message *, int *kind);
    int (*headers)(const message *, headers **found);
    int (*header)(const headers *, size_t at, const char **, const void **, size_t *);
    void (*destroy)(message *);
    error *(*produce)(client *, const argument *, size_t count);
    int (*code)(const error *);
    void (*forget)(error *);
    int (*intercept)(conf *, const char *name, when_made, void *);
    int (*kind)(const client *);
    void (*complain)(conf *, when_wrong);
} rd;

void headrace_use(void *const functions[11]) { memcpy(&rd, functions, sizeof rd); }

/* The client that this thread made last. librdkafka loads this library as a plugin too, and calls
   note_made for each new client. */

static _Thread_local client *made;

static void ignore(client *one, int code, const char *why, void *own) {
    (void)one, (void)code, (void)why, (void)own;
}

/* A consumer reports errors by a callback, in any call that takes from its queues. In a call of
   ours the callback of the Python client would end the process, as the Python client has no call
   under way. The Python client always sets its callback, and does so after `conf_init`; this is the
   only place behind that, and the client has no thread yet. So the callback is replaced here.
   Errors that matter come with the partition as well. */
static int note_made(client *one, const conf *c, void *own, char *why, size_t why_bytes) {
    (void)own, (void)why, (void)why_bytes;
    if (rd.kind(one) == CONSUMER)
        rd.complain((conf *)c, ignore);
    made = one;
    return 0;
}

int conf_init(conf *c, void **own, char *why, size_t why_bytes) {
    (void)own, (void)why, (void)why_bytes;
    return rd.intercept ? rd.intercept(c, "headrace", note_made, NULL) : FAILED;
}

client *headrace_made(void) {
    client *one = made;
    made = NULL;
    return one;
}

/* Taking fetched records. */

enum { STEP = 64 };

typedef struct {
    int64_t records;
    int64_t troubles; /* errors, which stand behind the records */
    int64_t key_bytes;
    int64_t data_bytes;
    int64_t headers;
    int64_t name_bytes;
    int64_t header_bytes;
    int64_t unreadable; /* how many of the records have headers that cannot be decoded */
} sizes;

static void measure(const message *one, sizes *sum) {
    headers *own;
    sum->key_bytes += one->key ? one->key_bytes : 0;
    sum->data_bytes += one->data ? one->data_bytes : 0;
    int none = rd.headers(one, &own);
    if (none) {
        sum->unreadable += none != NO_HEADERS;
        return;
    }
    const char *name;
    const void *value;
    size_t bytes;
    for (size_t at = 0; !rd.header(own, at, &name, &value, &bytes); at++) {
        sum->headers++;
        sum->name_bytes += strlen(name);
        sum->header_bytes += value ? bytes : 0;
    }
}

/* Gives back the messages that were taken; a second call does nothing. */
void headrace_drop(message *const *all, sizes *sum) {
    int64_t count = sum->records + sum->troubles;
    sum->records = sum->troubles = 0;
    for (int64_t i = 0; i < count; i++)
        rd.destroy(all[i]);
}

/* Takes messages; waits for the first ones only. It ends when there are enough or no more, at an
   error, and behind a record that cannot be decoded, which is then the last. Messages of an earlier
   call are given back first. */
void headrace_take(queue *q, int wait_ms, int64_t most, int64_t enough_bytes, message **into,
                   sizes *sum) {
    message *troubles[STEP];
    headrace_drop(into, sum);
    memset(sum, 0, sizeof *sum);
    while (sum->records < most && sum->key_bytes + sum->data_bytes < enough_bytes) {
        int64_t room = most - sum->records;
        size_t step = room < STEP ? (size_t)room : STEP;
        message **found = into + sum->records;
        ptrdiff_t count = rd.consume(q, wait_ms, found, step);
        if (count <= 0)
            return;
        wait_ms = 0;
        int64_t records = 0;
        for (ptrdiff_t i = 0; i < count; i++) {
            if (sum->unreadable) {
                rd.destroy(found[i]);
            } else if (found[i]->err) {
                troubles[sum->troubles++] = found[i];
            } else {
                measure(found[i], sum);
                found[records++] = found[i];
            }
        }
        sum->records += records;
        memcpy(into + sum->records, troubles, sum->troubles * sizeof *troubles);
        if (sum->troubles || sum->unreadable)
            return;
    }
}

typedef struct {
    uint8_t *valid; /* one bit for each value; NULL: no value is null */
    int32_t *ends;  /* where each value begins, and where the last one ends */
    uint8_t *bytes; /* NULL: all values are empty */
    int64_t first;  /* the row of the first value in all three; 0 for columns that are filled */
} column;

static void put(column *to, int64_t at, const void *value, size_t bytes) {
    if (value) {
        to->valid[at >> 3] |= 1 << (at & 7);
        memcpy(to->bytes + to->ends[at], value, bytes);
    } else {
        bytes = 0;
    }
    to->ends[at + 1] = to->ends[at] + (int32_t)bytes;
}

typedef struct {
    int64_t *offsets;
    int64_t *times_us;
    column keys;
    column data;
    int32_t *header_ends; /* NULL if no record has any */
    column names;
    column headers;
} columns;

static void begin(column *to, int64_t count) {
    memset(to->valid, 0, (size_t)(count + 7) / 8);
    to->ends[0] = 0;
}

void headrace_fill(message *const *from, const sizes *sum, int64_t time_ms_max, columns *to) {
    int64_t count = sum->records, header = 0;
    begin(&to->keys, count);
    begin(&to->data, count);
    if (to->header_ends) {
        to->header_ends[0] = 0;
        begin(&to->names, sum->headers);
        begin(&to->headers, sum->headers);
    }
    for (int64_t i = 0; i < count; i++) {
        const message *one = from[i];
        int64_t time_ms = rd.timestamp(one, NULL);
        to->offsets[i] = one->offset;
        to->times_us[i] = 1000 * (time_ms < 0 ? 0 : time_ms > time_ms_max ? time_ms_max : time_ms);
        put(&to->keys, i, one->key, one->key_bytes);
        put(&to->data, i, one->data, one->data_bytes);
        if (!to->header_ends)
            continue;
        headers *own;
        const char *name;
        const void *value;
        size_t bytes;
        if (!rd.headers(one, &own)) {
            for (size_t at = 0; !rd.header(own, at, &name, &value, &bytes); at++, header++) {
                put(&to->names, header, name, strlen(name));
                put(&to->headers, header, value, bytes);
            }
        }
        to->header_ends[i + 1] = (int32_t)header;
    }
}

/* Sending records that consist of a key, data and a timestamp only. */

static const char EMPTY[1];

static void set_memory(argument *to, const column *from, int64_t row) {
    int64_t at = from->first + row;
    int is_there = !from->valid || from->valid[at >> 3] >> (at & 7) & 1;
    const uint8_t *start = from->bytes ? from->bytes + from->ends[at] : (const uint8_t *)EMPTY;
    to->is.memory.start = is_there ? start : NULL;
    to->is.memory.bytes = is_there ? (size_t)(from->ends[at + 1] - from->ends[at]) : 0;
}

/* Returns how many records the client took before it refused one; `why` gets the code of that. */
int64_t headrace_send(client *to, topic *of, int32_t partition, const column *keys,
                      const column *data, const int64_t *times_us, int64_t start, int64_t end,
                      int *why) {
    argument call[6];
    memset(call, 0, sizeof call);
    call[0].kind = OF, call[0].is.of = of;
    call[1].kind = PARTITION, call[1].is.partition = partition;
    call[2].kind = HOW, call[2].is.number = COPIED;
    call[3].kind = KEY;
    call[4].kind = DATA;
    call[5].kind = TIME;
    *why = 0;
    for (int64_t i = start; i < end; i++) {
        set_memory(&call[3], keys, i);
        set_memory(&call[4], data, i);
        call[5].is.time_ms = times_us[i] / 1000;
        error *refused = rd.produce(to, call, 6);
        if (refused) {
            *why = rd.code(refused);
            rd.forget(refused);
            return i - start;
        }
    }
    return end - start;
}
