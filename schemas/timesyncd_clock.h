/*
 * Reads the clock segment of timesyncd: how far CLOCK_REALTIME may be off, now. SHM.md is the contract.
 *
 * C11 or C++17, gcc or clang, 64 bits, Linux; no library. Include it first, or compile with -D_GNU_SOURCE.
 *
 *     timesyncd_clock clock;
 *     timesyncd_open(&clock, NULL);
 *     timesyncd_interval utc = timesyncd_now(&clock, TIMESYNCD_UTC);
 *
 * Nothing here fails or waits. Without a daemon, or with a clock that is not to be trusted, the interval is all of time
 * (INT64_MIN to INT64_MAX), and `status` and `reason` say why. A timesyncd_clock belongs to one thread at a time; it
 * holds over a fork.
 *
 * The functions are static inline. To link them from another language, define TIMESYNCD_API as nothing in one C file.
 */
#ifndef TIMESYNCD_CLOCK_H
#define TIMESYNCD_CLOCK_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_BOOTTIME
#error "include timesyncd_clock.h before other headers, or compile with -D_GNU_SOURCE"
#endif

#ifndef TIMESYNCD_API
#define TIMESYNCD_API static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The layout. What a new version changes is in this part alone; a test compares it with the writer's. */

#define TIMESYNCD_DEFAULT_PATH "/run/timesyncd/clock"
#define TIMESYNCD_MAGIC INT64_C(0x6b6c63636e797374)
#define TIMESYNCD_LAYOUT_VERSION 4
#define TIMESYNCD_ABSENT INT64_MIN
#define TIMESYNCD_STEP_TOLERANCE_NS 2000
#define TIMESYNCD_TRIES 64
#define TIMESYNCD_LOOK_AGAIN_NS INT64_C(1000000000)

/* Words of the header, in units of 8 octets. */
enum {
    TIMESYNCD_WORD_MAGIC,
    TIMESYNCD_WORD_LAYOUT_VERSION,
    TIMESYNCD_WORD_SIZE,
    TIMESYNCD_WORD_GENERATION,
    TIMESYNCD_WORD_CHECKSUM,
    TIMESYNCD_WORD_PAYLOAD
};

/* The bounds, in their order; each is of three words. */
#define TIMESYNCD_BOUNDS(X) X(PARENT_HARD) X(GM_HARD) X(UTC_HARD) X(PARENT_STAT) X(GM_STAT) X(UTC_STAT)

/* What makes up the parent's hard bound, one word each, in their order. */
#define TIMESYNCD_TERMS(X)                                                                                     \
    X(OFFSET) X(PATH_DELAY) X(PATH_MEMORY) X(GRANULARITY) X(STEP_TOLERANCE)                                    \
    X(ASYMMETRY_UNCERTAINTY) X(READING_AGE) X(PHC_READING) X(PHC_TO_SYSTEM) X(SINCE_SAMPLE)                    \
    X(PHC_AGE)

/* Words of the payload, as timesyncd_read() gives it. */
#define TIMESYNCD_BOUND_WORDS(name) \
    TIMESYNCD_##name##_BOUND_NS, TIMESYNCD_##name##_GROWTH_PPB, TIMESYNCD_##name##_REASON,
#define TIMESYNCD_TERM_WORD(name) TIMESYNCD_TERM_##name,
enum {
    TIMESYNCD_BOOT_ID_LOW,
    TIMESYNCD_BOOT_ID_HIGH,
    TIMESYNCD_TIME_NAMESPACE,
    TIMESYNCD_AS_OF_NS,
    TIMESYNCD_REAL_MINUS_BOOT_NS,
    TIMESYNCD_GM_STATUS,
    TIMESYNCD_UTC_STATUS,
    TIMESYNCD_HOLDOVER_AFTER_NS,
    TIMESYNCD_VOID_AFTER_NS,
    TIMESYNCD_UTC_SECONDS_REMOVED,
    TIMESYNCD_PAST_GROWTH_PPB,
    TIMESYNCD_PAST_SPAN_NS,
    TIMESYNCD_BOUNDS(TIMESYNCD_BOUND_WORDS)
    TIMESYNCD_GRANDMASTER_IDENTITY,
    TIMESYNCD_PARENT_IDENTITY,
    TIMESYNCD_CLOCK_KIND,
    TIMESYNCD_CLOCK_INDEX,
    TIMESYNCD_TERMS(TIMESYNCD_TERM_WORD)
    TIMESYNCD_FREQUENCY_PPB,
    TIMESYNCD_STEERING_PPB,
    TIMESYNCD_UTC_STEERING_PPB,
    TIMESYNCD_PUBLICATION_RAW_NS,
    TIMESYNCD_PUBLICATION_MONO_MINUS_RAW_NS,
    TIMESYNCD_PUBLICATION_ERROR_NS,
    TIMESYNCD_PUBLICATION_UNSEEN_NS,
    TIMESYNCD_WORD_COUNT
};

#define TIMESYNCD_SIZE ((TIMESYNCD_WORD_PAYLOAD + TIMESYNCD_WORD_COUNT) * 8)

#define TIMESYNCD_STATUSES(X) X(UNKNOWN, 0) X(SYNCHRONIZED, 1) X(HOLDOVER, 2) X(DISRUPTED, 3)

#define TIMESYNCD_REASONS(X)                                                                                   \
    X(OK, 0)                                                                                                   \
    X(NO_SAMPLE_YET, 1)                                                                                        \
    X(NO_SEGMENT, 2)                                                                                           \
    X(TORN_SEGMENT, 3)                                                                                         \
    X(OTHER_BOOT, 4)                                                                                           \
    X(OTHER_TIME_NAMESPACE, 5)                                                                                 \
    X(AS_OF_IN_FUTURE, 6)                                                                                      \
    X(CLOCK_STEPPED, 7)                                                                                        \
    X(SOURCE_RESTARTED, 8)                                                                                     \
    X(PARENT_CHANGED, 9)                                                                                       \
    X(STALE, 10)                                                                                               \
    X(EXPIRED, 11)                                                                                             \
    X(PHC_NOT_MEASURED, 12)                                                                                    \
    X(BOUNDARY_CLOCK_ERROR_UNKNOWN, 13)                                                                        \
    X(ARBITRARY_TIMESCALE, 14)                                                                                 \
    X(UTC_OFFSET_UNKNOWN, 15)                                                                                  \
    X(UTC_OFFSET_DIFFERS, 16)                                                                                  \
    X(GRANDMASTER_NOT_LOCKED, 17)                                                                              \
    X(GRANDMASTER_ACCURACY_UNKNOWN, 18)                                                                        \
    X(NOT_COMPUTED, 19)                                                                                        \
    X(OTHER_LAYOUT, 20)                                                                                        \
    X(GRANDMASTER_RESTARTED, 21)                                                                               \
    X(GRANDMASTER_JUMPED, 22)                                                                                  \
    X(GRANDMASTER_LEFT_HOLDOVER, 23)                                                                           \
    X(GRANDMASTER_IDENTITY_CHANGED, 24)                                                                        \
    X(GRANDMASTER_UTC_OFFSET_CHANGED, 25)                                                                      \
    X(HOLDOVER_BUDGET_EXCEEDED, 26)                                                                            \
    X(NO_HOLDOVER_BUDGET, 27)                                                                                  \
    X(HOLDOVER_AGE_UNKNOWN, 28)                                                                                \
    X(GRANDMASTER_CONTRADICTS_ITSELF, 29)                                                                      \
    X(GRANDMASTER_STATE_UNKNOWN, 30)                                                                           \
    X(GRANDMASTER_ERROR_NOT_REPORTED, 31)                                                                      \
    X(GRANDMASTER_STATE_EXPIRED, 32)                                                                           \
    X(NO_GRANDMASTER, 33)                                                                                      \
    X(VM_MIGRATED, 34) X(SUSPENDED, 35) X(IMPLAUSIBLE, 36) X(NO_ANNOUNCE, 37)                                  \
    X(PATH_CHANGED, 38) X(GRANDMASTER_CHANGED, 39) X(FOLLOWS_PHC, 40) X(REFCLOCK_NOT_DECLARED, 41)             \
    X(STEERING_LIMIT_UNKNOWN, 42) X(PHC_SECONDS_DIFFER, 43) X(TWO_PORTS_FOLLOW, 44) X(ANNOUNCE_CONTRADICTED, 45)   \
    X(PHC_READ_APART, 46) X(SOURCE_WITHDRAWN, 47)

/* From here on nothing depends on the version. */

#define TIMESYNCD_STATUS_MEMBER(name, number) TIMESYNCD_##name = number,
#define TIMESYNCD_REASON_MEMBER(name, number) TIMESYNCD_REASON_##name = number,
typedef enum { TIMESYNCD_STATUSES(TIMESYNCD_STATUS_MEMBER) TIMESYNCD_STATUS_COUNT } timesyncd_status;
typedef enum { TIMESYNCD_REASONS(TIMESYNCD_REASON_MEMBER) TIMESYNCD_REASON_COUNT } timesyncd_reason;
typedef enum { TIMESYNCD_PARENT, TIMESYNCD_GRANDMASTER, TIMESYNCD_UTC } timesyncd_reference;

/*
 * The time is in [earliest_ns, latest_ns], since 1970, while the status is SYNCHRONIZED or HOLDOVER; else that is all
 * of time. Against parent and grandmaster the scale is CLOCK_REALTIME's; TIMESYNCD_UTC_SECONDS_REMOVED is not added.
 */
typedef struct {
    int64_t earliest_ns;
    int64_t latest_ns;
    timesyncd_status status;
    timesyncd_reason reason;
} timesyncd_interval;

/* CLOCK_MONOTONIC between two readings of CLOCK_MONOTONIC_RAW, which nothing steers. */
typedef struct {
    int64_t before_ns;
    int64_t monotonic_ns;
    int64_t after_ns;
} timesyncd_raw;

typedef struct {
    const char *path;
    const int64_t *words;
    uint64_t device, inode;
    int64_t looked_ns;
    int64_t boot_id_low, boot_id_high, time_namespace;
    int64_t torn;
    int64_t cached;
    int64_t payload[TIMESYNCD_WORD_COUNT];
} timesyncd_clock;

/* `path` NULL: the default; it must outlive the clock. The file may come later. */
TIMESYNCD_API void timesyncd_open(timesyncd_clock *clock, const char *path);
TIMESYNCD_API void timesyncd_close(timesyncd_clock *clock);
/* The time now, with its bound against `reference`. */
TIMESYNCD_API timesyncd_interval timesyncd_now(timesyncd_clock *clock, timesyncd_reference reference);
/* What was published last, TIMESYNCD_WORD_COUNT words, good until the next call; NULL, and why, if there is nothing. */
TIMESYNCD_API const int64_t *timesyncd_read(timesyncd_clock *clock, timesyncd_reason *reason);
/*
 * The interval that a payload gave at a reading of both clocks, CLOCK_REALTIME first. Pure. `raw` was read after them; NULL:
 * how the clock was steered since is not measured, and the bound grows by what it may have been.
 */
TIMESYNCD_API timesyncd_interval timesyncd_interval_at(const int64_t *payload, timesyncd_reference reference,
                                                       int64_t real_ns, int64_t boot_ns,
                                                       const timesyncd_raw *raw);
TIMESYNCD_API const char *timesyncd_status_name(timesyncd_status status);
TIMESYNCD_API const char *timesyncd_reason_name(timesyncd_reason reason);

/* Sums of any two words, and products, do not leave it. */
__extension__ typedef __int128 timesyncd_wide;

static inline int64_t timesyncd_clamped_(timesyncd_wide value) {
    return value > INT64_MAX ? INT64_MAX : value < INT64_MIN ? INT64_MIN : (int64_t)value;
}

static inline int64_t timesyncd_clock_ns_(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t timesyncd_load_(const timesyncd_clock *clock, int word) {
    return __atomic_load_n(clock->words + word, __ATOMIC_ACQUIRE);
}

static inline uint32_t timesyncd_crc_(uint32_t crc, int64_t word) {
    for (int bit = 0; bit < 64; bit++)
        crc = (crc >> 1) ^ (((crc ^ (uint32_t)((uint64_t)word >> bit)) & 1) ? UINT32_C(0xedb88320) : 0);
    return crc;
}

/* CRC-32 of the generation and the payload, octets little-endian, least bit first. */
static inline int64_t timesyncd_checksum_(int64_t generation, const int64_t *payload) {
    uint32_t crc = timesyncd_crc_(UINT32_MAX, generation);
    for (int word = 0; word < TIMESYNCD_WORD_COUNT; word++) crc = timesyncd_crc_(crc, payload[word]);
    return (int64_t)(crc ^ UINT32_MAX);
}

static inline void timesyncd_read_boot_id_(timesyncd_clock *clock) {
    uint64_t high = 0, low = 0;
    int digit;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return;
    while ((digit = fgetc(file)) != EOF && digit != '\n') {
        if (digit == '-') continue;
        high = high << 4 | low >> 60;
        low = low << 4 | (uint64_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    fclose(file);
    clock->boot_id_low = (int64_t)low;
    clock->boot_id_high = (int64_t)high;
}

static inline void timesyncd_unmap_(timesyncd_clock *clock) {
    if (clock->words) munmap((void *)(uintptr_t)clock->words, TIMESYNCD_SIZE);
    clock->words = NULL;
}

/* Map the file if it came, or came anew, since. At most once a second does anything. */
static inline void timesyncd_look_again_(timesyncd_clock *clock) {
    struct stat found;
    int64_t now_ns = timesyncd_clock_ns_(CLOCK_MONOTONIC);
    if (clock->looked_ns && now_ns - clock->looked_ns < TIMESYNCD_LOOK_AGAIN_NS) return;
    clock->looked_ns = now_ns;
    int fd = open(clock->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &found) == 0 && found.st_size >= TIMESYNCD_SIZE &&
        !(clock->words && found.st_dev == clock->device && found.st_ino == clock->inode)) {
        void *words = mmap(NULL, TIMESYNCD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
        if (words != MAP_FAILED) {
            timesyncd_unmap_(clock);
            clock->words = (const int64_t *)words;
            clock->device = found.st_dev;
            clock->inode = found.st_ino;
            clock->torn = 0;
            /* Another file's generations: what is cached stays, but is of none of them. */
            if (clock->cached) clock->cached = -1;
        }
    }
    close(fd);
}

TIMESYNCD_API void timesyncd_open(timesyncd_clock *clock, const char *path) {
    struct stat found;
    memset(clock, 0, sizeof *clock);
    clock->path = path ? path : TIMESYNCD_DEFAULT_PATH;
    timesyncd_read_boot_id_(clock);
    if (stat("/proc/self/ns/time", &found) == 0) clock->time_namespace = (int64_t)found.st_ino;
    timesyncd_look_again_(clock);
}

TIMESYNCD_API void timesyncd_close(timesyncd_clock *clock) { timesyncd_unmap_(clock); }

static inline int timesyncd_is_ours_(const timesyncd_clock *clock) {
    return timesyncd_load_(clock, TIMESYNCD_WORD_MAGIC) == TIMESYNCD_MAGIC &&
           timesyncd_load_(clock, TIMESYNCD_WORD_LAYOUT_VERSION) == TIMESYNCD_LAYOUT_VERSION &&
           timesyncd_load_(clock, TIMESYNCD_WORD_SIZE) == TIMESYNCD_SIZE;
}

/* Copies the payload if it is not the cached one; gives whether there is one, and else why not. */
static inline timesyncd_reason timesyncd_refresh_(timesyncd_clock *clock) {
    int64_t before = timesyncd_load_(clock, TIMESYNCD_WORD_GENERATION), copy[TIMESYNCD_WORD_COUNT];
    timesyncd_reason as_before = clock->cached ? TIMESYNCD_REASON_OK : TIMESYNCD_REASON_TORN_SEGMENT;
    if (before && (before == clock->cached || before == clock->torn)) return as_before;
    for (int tries = 0; tries < TIMESYNCD_TRIES; tries++) {
        before = timesyncd_load_(clock, TIMESYNCD_WORD_GENERATION);
        if (before == 0) return TIMESYNCD_REASON_NO_SAMPLE_YET;
        if (!timesyncd_is_ours_(clock)) return TIMESYNCD_REASON_OTHER_LAYOUT;
        for (int word = 0; word < TIMESYNCD_WORD_COUNT; word++)
            copy[word] = timesyncd_load_(clock, TIMESYNCD_WORD_PAYLOAD + word);
        if (before & 1 || timesyncd_load_(clock, TIMESYNCD_WORD_CHECKSUM) != timesyncd_checksum_(before, copy) ||
            timesyncd_load_(clock, TIMESYNCD_WORD_GENERATION) != before)
            continue;
        memcpy(clock->payload, copy, sizeof copy);
        clock->cached = before;
        clock->torn = 0;
        return TIMESYNCD_REASON_OK;
    }
    clock->torn = timesyncd_load_(clock, TIMESYNCD_WORD_GENERATION) == before ? before : 0;
    return as_before;
}

static inline int timesyncd_is_known_(const int64_t *payload) {
#define TIMESYNCD_REASON_IS_KNOWN(name)                                                                        \
    &&payload[TIMESYNCD_##name##_REASON] >= 0 && payload[TIMESYNCD_##name##_REASON] < TIMESYNCD_REASON_COUNT
    return payload[TIMESYNCD_GM_STATUS] >= 0 && payload[TIMESYNCD_GM_STATUS] < TIMESYNCD_STATUS_COUNT &&
           payload[TIMESYNCD_UTC_STATUS] >= 0 &&
           payload[TIMESYNCD_UTC_STATUS] < TIMESYNCD_STATUS_COUNT TIMESYNCD_BOUNDS(TIMESYNCD_REASON_IS_KNOWN);
#undef TIMESYNCD_REASON_IS_KNOWN
}

TIMESYNCD_API const int64_t *timesyncd_read(timesyncd_clock *clock, timesyncd_reason *reason) {
    const int64_t *payload = clock->payload;
    if (!clock->words) timesyncd_look_again_(clock);
    *reason = clock->words ? timesyncd_refresh_(clock) : TIMESYNCD_REASON_NO_SEGMENT;
    if (*reason != TIMESYNCD_REASON_OK) return NULL;
    if (!timesyncd_is_known_(payload))
        *reason = TIMESYNCD_REASON_OTHER_LAYOUT;
    else if (payload[TIMESYNCD_BOOT_ID_LOW] != clock->boot_id_low ||
             payload[TIMESYNCD_BOOT_ID_HIGH] != clock->boot_id_high)
        *reason = TIMESYNCD_REASON_OTHER_BOOT;
    else if (payload[TIMESYNCD_TIME_NAMESPACE] != clock->time_namespace)
        *reason = TIMESYNCD_REASON_OTHER_TIME_NAMESPACE;
    return *reason == TIMESYNCD_REASON_OK ? payload : NULL;
}

static inline int timesyncd_is_stepped_(const int64_t *payload, int64_t real_ns, int64_t boot_ns) {
    timesyncd_wide step_ns = (timesyncd_wide)real_ns - boot_ns - payload[TIMESYNCD_REAL_MINUS_BOOT_NS];
    return step_ns > TIMESYNCD_STEP_TOLERANCE_NS || step_ns < -TIMESYNCD_STEP_TOLERANCE_NS;
}

static inline timesyncd_interval timesyncd_without_(timesyncd_status status, timesyncd_reason reason) {
    timesyncd_interval all = {INT64_MIN, INT64_MAX, status, reason};
    return all;
}

/* How far the clock was steered since the payload, beyond its frequency: at most so many ns, either way. */
static inline timesyncd_wide timesyncd_steered_ns_(const int64_t *payload, const timesyncd_raw *raw) {
    timesyncd_wide since_ns = timesyncd_clamped_((timesyncd_wide)raw->after_ns - payload[TIMESYNCD_PUBLICATION_RAW_NS]);
    timesyncd_wide scaled = payload[TIMESYNCD_FREQUENCY_PPB] * since_ns;
    timesyncd_wide explained_ns = scaled / 1000000000 - (scaled % 1000000000 < 0);
    timesyncd_wide least_ns = (timesyncd_wide)raw->monotonic_ns - raw->after_ns -
                              payload[TIMESYNCD_PUBLICATION_MONO_MINUS_RAW_NS] - explained_ns - 1;
    timesyncd_wide most_ns =
        least_ns + raw->after_ns - raw->before_ns + payload[TIMESYNCD_PUBLICATION_ERROR_NS] + 2;
    return payload[TIMESYNCD_PUBLICATION_UNSEEN_NS] + (most_ns > -least_ns ? most_ns : -least_ns);
}

TIMESYNCD_API timesyncd_interval timesyncd_interval_at(const int64_t *payload, timesyncd_reference reference,
                                                       int64_t real_ns, int64_t boot_ns,
                                                       const timesyncd_raw *raw) {
    const int64_t *bound = payload + (reference == TIMESYNCD_UTC           ? TIMESYNCD_UTC_HARD_BOUND_NS
                                      : reference == TIMESYNCD_GRANDMASTER ? TIMESYNCD_GM_HARD_BOUND_NS
                                                                           : TIMESYNCD_PARENT_HARD_BOUND_NS);
    int64_t written = payload[reference == TIMESYNCD_UTC ? TIMESYNCD_UTC_STATUS : TIMESYNCD_GM_STATUS];
    timesyncd_wide age_ns = (timesyncd_wide)boot_ns - payload[TIMESYNCD_AS_OF_NS];
    timesyncd_reason absent = (timesyncd_reason)bound[2];

    if (written == TIMESYNCD_UNKNOWN || written == TIMESYNCD_DISRUPTED)
        return timesyncd_without_((timesyncd_status)written, absent);
    if (age_ns < 0 || age_ns >= payload[TIMESYNCD_VOID_AFTER_NS]) {
        timesyncd_reason aged = age_ns < 0 ? TIMESYNCD_REASON_AS_OF_IN_FUTURE : TIMESYNCD_REASON_EXPIRED;
        return timesyncd_without_(TIMESYNCD_UNKNOWN, bound[0] == TIMESYNCD_ABSENT ? absent : aged);
    }
    if (timesyncd_is_stepped_(payload, real_ns, boot_ns))
        return timesyncd_without_(TIMESYNCD_DISRUPTED, TIMESYNCD_REASON_CLOCK_STEPPED);
    if (bound[0] == TIMESYNCD_ABSENT) return timesyncd_without_(TIMESYNCD_UNKNOWN, absent);

    int measured = raw && payload[TIMESYNCD_FREQUENCY_PPB] != TIMESYNCD_ABSENT;
    int64_t steering =
        payload[reference == TIMESYNCD_UTC ? TIMESYNCD_UTC_STEERING_PPB : TIMESYNCD_STEERING_PPB];
    timesyncd_wide growth = timesyncd_clamped_((timesyncd_wide)bound[1] - (measured ? steering : 0));
    timesyncd_wide grown = growth * age_ns; /* in 1e-9 ns, rounded up below */
    timesyncd_wide width_ns = bound[0] + grown / 1000000000 + (grown % 1000000000 > 0);
    if (measured) width_ns += timesyncd_steered_ns_(payload, raw);
    int fresh = age_ns < payload[TIMESYNCD_HOLDOVER_AFTER_NS];
    timesyncd_interval found = {timesyncd_clamped_(real_ns - width_ns), timesyncd_clamped_(real_ns + width_ns),
                                fresh ? TIMESYNCD_SYNCHRONIZED : TIMESYNCD_HOLDOVER,
                                fresh ? TIMESYNCD_REASON_OK : TIMESYNCD_REASON_STALE};
    return found;
}

/* The narrowest of three. */
static inline timesyncd_raw timesyncd_read_raw_(void) {
    timesyncd_raw best = {0, 0, INT64_MAX};
    for (int tries = 0; tries < 3; tries++) {
        timesyncd_raw found;
        found.before_ns = timesyncd_clock_ns_(CLOCK_MONOTONIC_RAW);
        found.monotonic_ns = timesyncd_clock_ns_(CLOCK_MONOTONIC);
        found.after_ns = timesyncd_clock_ns_(CLOCK_MONOTONIC_RAW);
        if (found.after_ns - found.before_ns < best.after_ns - best.before_ns) best = found;
    }
    return best;
}

TIMESYNCD_API timesyncd_interval timesyncd_now(timesyncd_clock *clock, timesyncd_reference reference) {
    timesyncd_reason reason;
    const int64_t *payload = timesyncd_read(clock, &reason);
    timesyncd_interval found = timesyncd_without_(TIMESYNCD_UNKNOWN, reason);
    if (payload) {
        /* REALTIME first: a pause in between widens the bound. It looks like a step back: the best of three tells. */
        int64_t real_ns = timesyncd_clock_ns_(CLOCK_REALTIME), boot_ns = timesyncd_clock_ns_(CLOCK_BOOTTIME);
        for (int tries = 1; tries < 3 && timesyncd_is_stepped_(payload, real_ns, boot_ns); tries++) {
            int64_t real_again_ns = timesyncd_clock_ns_(CLOCK_REALTIME);
            int64_t boot_again_ns = timesyncd_clock_ns_(CLOCK_BOOTTIME);
            if (real_again_ns - boot_again_ns <= real_ns - boot_ns) continue;
            real_ns = real_again_ns;
            boot_ns = boot_again_ns;
        }
        timesyncd_raw raw = timesyncd_read_raw_();
        found = timesyncd_interval_at(payload, reference, real_ns, boot_ns, &raw);
    }
    if (found.status != TIMESYNCD_SYNCHRONIZED) timesyncd_look_again_(clock);
    return found;
}

#define TIMESYNCD_NAME(name, number)                                                                           \
    case number: return #name;
TIMESYNCD_API const char *timesyncd_status_name(timesyncd_status status) {
    switch ((int)status) { TIMESYNCD_STATUSES(TIMESYNCD_NAME) }
    return "?";
}

TIMESYNCD_API const char *timesyncd_reason_name(timesyncd_reason reason) {
    switch ((int)reason) { TIMESYNCD_REASONS(TIMESYNCD_NAME) }
    return "?";
}
#undef TIMESYNCD_NAME

#ifdef __cplusplus
}
#endif

#endif
