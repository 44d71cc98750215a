/*
 * Reads clocks against the processor's counter (TSC), and the guest's counter against the host's.
 *
 * Under QEMU's TCG the guest's counter is the host's plus a constant. The constant is the virtual machine's own, and another one after
 * stop/cont and after a migration. A clock that is read between two readings of the counter has its moment on the guest's scale; with the
 * constant that is a moment on the one scale that all virtual machines of a host share.
 *
 *   clocktruth log FILE PERIOD_MS SECONDS [/dev/ptpN ...]  a line: "before after ns" of CLOCK_REALTIME, _MONOTONIC_RAW, _BOOTTIME, each PHC
 *   clocktruth handshake PCI_RESOURCE SLOT COUNT           the constant: "lowest highest shortest_round_trip", in ticks
 *   clocktruth serve FILE SECONDS                          on the host: the other side of the handshakes
 *   clocktruth counter                                     the counter now
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { READINGS = 5, MOST_PHCS = 8, SLOTS = 8 };

static const int64_t NS_PER_S = 1000000000;
static const uint64_t HANDSHAKE_LIMIT_TICKS = 20000000000u;

/* One virtual machine's part of the shared memory: a cache line. */
struct slot {
    volatile uint64_t request, reply, host_counter;
    uint64_t padding[5];
};

struct reading {
    uint64_t before, after;
    int64_t ns;
};

static inline uint64_t counter(void)
{
    uint32_t low, high;
    __asm__ volatile("mfence; lfence; rdtsc; lfence" : "=a"(low), "=d"(high)::"memory");
    return ((uint64_t)high << 32) | low;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* The narrowest of some readings. */
static struct reading read_clock(clockid_t clock)
{
    struct reading best = {0, UINT64_MAX, 0};
    for (int i = 0; i < READINGS; i++) {
        struct reading r;
        r.before = counter();
        r.ns = clock_ns(clock);
        r.after = counter();
        if (r.after - r.before < best.after - best.before)
            best = r;
    }
    return best;
}

static void *map_shared(const char *path, size_t size)
{
    int fd = open(path, O_RDWR);
    void *memory = fd < 0 ? MAP_FAILED : mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return memory;
}

static int log_clocks(const char *path, int period_ms, int seconds, int phcs, char **devices)
{
    clockid_t clocks[3 + MOST_PHCS] = {CLOCK_REALTIME, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME};
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return 1;
    }
    for (int i = 0; i < phcs; i++) {
        int fd = open(devices[i], O_RDONLY);
        if (fd < 0) {
            perror(devices[i]);
            return 1;
        }
        clocks[3 + i] = ((~(clockid_t)fd) << 3) | 3;
    }
    int64_t end_ns = clock_ns(CLOCK_MONOTONIC) + seconds * NS_PER_S;
    while (clock_ns(CLOCK_MONOTONIC) < end_ns) {
        for (int i = 0; i < 3 + phcs; i++) {
            struct reading r = read_clock(clocks[i]);
            fprintf(file, "%s%lu %lu %ld", i ? " " : "", r.before, r.after, r.ns);
        }
        fputc('\n', file);
        fflush(file);
        usleep(period_ms * 1000);
    }
    return 0;
}

/* The host reads its counter between the request and the reply, so host - guest lies in [host - after, host - before]. */
static int handshake(struct slot *slot, int count)
{
    int64_t lowest = INT64_MIN, highest = INT64_MAX;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        uint64_t request = slot->reply + 1, before = counter();
        __atomic_store_n(&slot->request, request, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&slot->reply, __ATOMIC_SEQ_CST) != request)
            if (counter() - before > HANDSHAKE_LIMIT_TICKS) {
                fprintf(stderr, "the host does not reply\n");
                return 1;
            }
        uint64_t host = slot->host_counter, after = counter();
        if ((int64_t)(host - after) > lowest)
            lowest = host - after;
        if ((int64_t)(host - before) < highest)
            highest = host - before;
        if (after - before < shortest)
            shortest = after - before;
    }
    printf("%ld %ld %lu\n", lowest, highest, shortest);
    return 0;
}

static int serve(struct slot *slots, double seconds)
{
    int64_t end_ns = clock_ns(CLOCK_MONOTONIC) + (int64_t)(seconds * NS_PER_S);
    while (clock_ns(CLOCK_MONOTONIC) < end_ns)
        for (int round = 0; round < 1000; round++)
            for (int i = 0; i < SLOTS; i++) {
                uint64_t request = __atomic_load_n(&slots[i].request, __ATOMIC_SEQ_CST);
                if (request != slots[i].reply) {
                    slots[i].host_counter = counter();
                    __atomic_store_n(&slots[i].reply, request, __ATOMIC_SEQ_CST);
                }
            }
    return 0;
}

int main(int count, char **argument)
{
    if (count >= 5 && count <= 5 + MOST_PHCS && !strcmp(argument[1], "log"))
        return log_clocks(argument[2], atoi(argument[3]), atoi(argument[4]), count - 5, argument + 5);
    if (count == 5 && !strcmp(argument[1], "handshake"))
        return handshake((struct slot *)map_shared(argument[2], 4096) + atoi(argument[3]), atoi(argument[4]));
    if (count == 4 && !strcmp(argument[1], "serve"))
        return serve(map_shared(argument[2], 4096), atof(argument[3]));
    if (count == 2 && !strcmp(argument[1], "counter")) {
        printf("%lu\n", counter());
        return 0;
    }
    fprintf(stderr, "usage: see the source\n");
    return 2;
}
