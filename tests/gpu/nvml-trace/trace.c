/* A libnvidia-ml.so.1 that logs every call to stderr and passes it on to the real one.
 *
 * REAL_NVML           file of the real library (with its full path, symbolic links resolved)
 * NVML_TRACE_DUMP=1   also show the first bytes of what pointer arguments point to after the call
 *
 *   > nvmlDeviceGetMemoryInfo_v2(0x7f..., 0x7ffd..., 0x0, 0x1) first=0x02000028
 *   < nvmlDeviceGetMemoryInfo_v2 = 0
 *
 * Arguments are the first four integer registers: a function with fewer shows leftovers. `first` is the word behind
 * the second argument, where NVML's newer structures carry size and version. Functions of private tables are called
 * `table-<first bytes of the id>[<slot>]`; slot 0 is the word at the beginning of the table.
 *
 * The trampolines are made by make.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "names.h"

#define DEPTH_MAX 64
#define TABLE_BYTES_MAX (TABLE_SLOTS * sizeof(void *))
#define DUMP_BYTES 96
#define FIELD_VALUES_SHOWN 64

extern void trace_after(void);
extern void *const trace_slots[TABLE_SLOTS];

struct frame {
    uint64_t number;
    uint64_t arguments[6];
    void *returns_to;
};

/* What a slot of a private table stands for. */
struct slot {
    void *real;
    char name[48];
};

static void *real_functions[NAME_COUNT];
static struct slot slots[TABLE_SLOTS];
static int slots_used;
static struct { void *real, *copy; } tables[64];
static int tables_used;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int dumps;
static int peek_pipe[2] = {-1, -1};
static pthread_mutex_t peek_lock = PTHREAD_MUTEX_INITIALIZER;

static __thread struct frame frames[DEPTH_MAX];
static __thread int depth;

static void say(const char *format, ...)
{
    char line[2048];
    int indent = depth < 16 ? depth * 2 : 32;
    memset(line, ' ', indent);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + indent, sizeof line - indent - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - indent - 2)
        length = sizeof line - indent - 2;
    line[indent + length] = '\n';
    if (write(2, line, indent + length + 1) < 0)
        return;
}

/* Reads memory that may not be there: the kernel looks first. (Through a pipe, since some sandboxes refuse
 * process_vm_readv.) */
static int peek(uint64_t from, void *to, size_t bytes)
{
    if (from <= 4096)
        return 0;
    pthread_mutex_lock(&peek_lock);
    ssize_t there = write(peek_pipe[1], (const void *)from, bytes);
    size_t got = 0;
    while (there > 0 && got < (size_t)there) {
        ssize_t part = read(peek_pipe[0], (char *)to + got, there - got);
        if (part <= 0)
            break;
        got += part;
    }
    pthread_mutex_unlock(&peek_lock);
    return got == bytes;
}

static void open_real(void)
{
    const char *path = getenv("REAL_NVML");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        say("nvml-trace: REAL_NVML: %s", path ? dlerror() : "not set");
        _exit(70);
    }
    for (int i = 0; i < NAME_COUNT; i++)
        real_functions[i] = dlsym(library, NAMES[i]);
    dumps = getenv("NVML_TRACE_DUMP") != NULL;
    if (pipe(peek_pipe) != 0)
        say("nvml-trace: no pipe, so nothing behind a pointer is shown");
}

static const char *name_of(uint64_t number)
{
    return number < NAME_COUNT ? NAMES[number] : slots[number - NAME_COUNT].name;
}

/* nvmlFieldValue_t: ids are what a caller asks for, so both are worth a line of their own. */
static void say_field_values(const struct frame *frame, int is_answer)
{
    struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type, code; uint64_t value; } field;
    uint32_t count = (uint32_t)frame->arguments[1];
    for (uint32_t i = 0; i < count && i < FIELD_VALUES_SHOWN; i++) {
        if (!peek(frame->arguments[2] + i * sizeof field, &field, sizeof field))
            return;
        if (is_answer)
            say("    field %u scope %u: code %u type %u value 0x%lx", field.field, field.scope, field.code, field.type,
                field.value);
        else
            say("    field %u scope %u", field.field, field.scope);
    }
}

static void dump(const struct frame *frame)
{
    for (int i = 0; i < 4; i++) {
        unsigned char bytes[DUMP_BYTES];
        char text[DUMP_BYTES * 2 + DUMP_BYTES / 8 + 1], *at = text;
        if (!peek(frame->arguments[i], bytes, sizeof bytes))
            continue;
        for (int b = 0; b < DUMP_BYTES; b++)
            at += sprintf(at, b % 8 == 7 ? "%02x " : "%02x", bytes[b]);
        say("    argument %d: %s", i, text);
    }
}

/* Hands out a copy of a private table in which every function is traced. */
static void wrap_table(const struct frame *frame, uint32_t code)
{
    void **out = (void **)frame->arguments[0];
    unsigned char id[16];
    uint64_t size = 0;
    char id_text[33];
    if (!peek(frame->arguments[1], id, sizeof id))
        return;
    for (int i = 0; i < 16; i++)
        sprintf(id_text + 2 * i, "%02x", id[i]);
    if (code != 0 || !peek((uint64_t)out, &size, sizeof size) || !peek(size, &size, sizeof size)) {
        say("    table %s: code %u", id_text, code);
        return;
    }
    say("    table %s at %p, first word 0x%lx", id_text, *out, size);
    if (size < 8 || size % 8 != 0 || size > TABLE_BYTES_MAX)
        return; /* Not a size: what follows is unknown, so it is left alone. */

    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < tables_used; i++)
        if (tables[i].real == *out) {
            *out = tables[i].copy;
            pthread_mutex_unlock(&table_lock);
            return;
        }
    void **real = *out, **copy = malloc(size);
    memcpy(copy, real, size);
    for (uint64_t i = 1; i < size / 8; i++) {
        Dl_info info;
        if (!real[i] || !dladdr(real[i], &info) || slots_used == TABLE_SLOTS) {
            say("    table %.8s slot %lu: %p, not wrapped", id_text, i, real[i]);
            continue;
        }
        struct slot *slot = &slots[slots_used];
        slot->real = real[i];
        snprintf(slot->name, sizeof slot->name, "table-%.8s[%lu]", id_text, i);
        copy[i] = trace_slots[slots_used++];
    }
    if (tables_used < (int)(sizeof tables / sizeof tables[0])) {
        tables[tables_used].real = real;
        tables[tables_used++].copy = copy;
    }
    *out = copy;
    pthread_mutex_unlock(&table_lock);
}

/* Called by a trampoline; answers where it goes on. */
void *trace_enter(uint64_t number, const uint64_t *arguments, void **return_address)
{
    pthread_once(&opened, open_real);
    uint32_t first = 0;
    char first_text[32] = "";
    if (peek(arguments[1], &first, sizeof first))
        snprintf(first_text, sizeof first_text, " first=0x%08x", first);
    say("> %s(0x%lx, 0x%lx, 0x%lx, 0x%lx)%s", name_of(number), arguments[0], arguments[1], arguments[2], arguments[3],
        first_text);
    if (depth < DEPTH_MAX) {
        struct frame *frame = &frames[depth];
        frame->number = number;
        memcpy(frame->arguments, arguments, sizeof frame->arguments);
        if (number < NAME_COUNT && strcmp(NAMES[number], "nvmlDeviceGetFieldValues") == 0)
            say_field_values(frame, 0);
        frame->returns_to = *return_address;
        *return_address = (void *)trace_after;
        depth++;
    }
    return number < NAME_COUNT ? real_functions[number] : slots[number - NAME_COUNT].real;
}

/* Called when the real function is done; answers where its caller waits. */
void *trace_leave(uint64_t code)
{
    struct frame *frame = &frames[--depth];
    const char *name = name_of(frame->number);
    say("< %s = %u", name, (uint32_t)code);
    if (strcmp(name, "nvmlDeviceGetFieldValues") == 0)
        say_field_values(frame, 1);
    if (dumps)
        dump(frame);
    if (strcmp(name, "nvmlInternalGetExportTable") == 0)
        wrap_table(frame, (uint32_t)code);
    return frame->returns_to;
}
