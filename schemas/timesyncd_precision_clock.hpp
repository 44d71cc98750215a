/*
 * A process-wide wall clock for traces of collectives, with the five calls of torchcomms' PrecisionClock: now, range_ns,
 * now_ns, error_ns and using_ptp. It reads the clock segment of timesyncd (timesyncd_clock.h), and all times are UTC, in ns
 * since 1970: never TAI.
 *
 *     auto &clock = timesyncd::PrecisionClock::instance();
 *     auto [earliest, latest] = clock.range_ns();
 *
 * An unknown error is never 0: without a bound, range_ns() is all of time, error_ns() is INT64_MAX, using_ptp() is false, and
 * now() is CLOCK_REALTIME as it is. The answer is of each call: a daemon that starts or dies later counts. NCCL_USE_PTP=0,
 * read at the first call, switches it off. Threads may share the object.
 *
 * C++17, with timesyncd_clock.h beside it.
 */
#ifndef TIMESYNCD_PRECISION_CLOCK_HPP
#define TIMESYNCD_PRECISION_CLOCK_HPP

#include "timesyncd_clock.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace timesyncd {

struct NsRange {
    std::int64_t earliest;
    std::int64_t latest;
};

class PrecisionClock {
  public:
    using time_point = std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds>;

    /* The process's clock. */
    static PrecisionClock &instance() {
        static PrecisionClock clock(path_of_environment());
        return clock;
    }

    /* `path`: of the segment; empty: the default. */
    explicit PrecisionClock(std::string path = {}) : path_(std::move(path)) {
        const char *use = std::getenv("NCCL_USE_PTP");
        off_ = use && std::strcmp(use, "0") == 0;
    }

    time_point now() { return time_point(std::chrono::nanoseconds(now_ns())); }

    /* The true UTC lies in it. */
    NsRange range_ns() {
        timesyncd_interval utc = read();
        return {utc.earliest_ns, utc.latest_ns};
    }

    /* The middle of range_ns(), or CLOCK_REALTIME where that is all of time. */
    std::int64_t now_ns() {
        timesyncd_interval utc = read();
        return known(utc) ? utc.earliest_ns + (utc.latest_ns - utc.earliest_ns) / 2 : real_ns();
    }

    /* How far now_ns() may be off, either way. */
    std::int64_t error_ns() {
        timesyncd_interval utc = read();
        return known(utc) ? (utc.latest_ns - utc.earliest_ns + 1) / 2 : std::numeric_limits<std::int64_t>::max();
    }

    /* Whether the bound holds now. */
    bool using_ptp() { return known(read()); }

  private:
    static std::string path_of_environment() {
        const char *folder = std::getenv("TIMESYNCD_RUNTIME_DIR");
        return folder && *folder ? std::string(folder) + "/clock" : std::string();
    }

    static std::int64_t real_ns() {
        using namespace std::chrono;
        return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
    }

    static bool known(const timesyncd_interval &utc) {
        return utc.status == TIMESYNCD_SYNCHRONIZED || utc.status == TIMESYNCD_HOLDOVER;
    }

    /* A timesyncd_clock belongs to one thread, so each thread has its own. */
    struct Reader {
        std::string path;
        timesyncd_clock clock{};
        explicit Reader(const std::string &given) : path(given) {
            timesyncd_open(&clock, path.empty() ? nullptr : path.c_str());
        }
        Reader(const Reader &) = delete;
        Reader &operator=(const Reader &) = delete;
        ~Reader() { timesyncd_close(&clock); }
    };

    timesyncd_interval read() {
        if (off_) return {INT64_MIN, INT64_MAX, TIMESYNCD_UNKNOWN, TIMESYNCD_REASON_NO_SEGMENT};
        thread_local std::unique_ptr<Reader> reader;
        if (!reader || reader->path != path_) reader = std::make_unique<Reader>(path_);
        return timesyncd_now(&reader->clock, TIMESYNCD_UTC);
    }

    std::string path_;
    bool off_ = false;
};

} // namespace timesyncd

#endif
