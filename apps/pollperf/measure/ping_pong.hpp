// The loops for one operation at a time: one loop for each way in which two ends can exchange messages. The path and
// the checking of data are template parameters, and each role has its own function, so that no iteration has to test
// for them. With several connections, the iterations take turns between them.
//
// Each iteration ends with a time stamp. A sample is the time from one stamp to the next. With kVerify, the loop makes
// and checks data between the end of one sample and the beginning of the next sample.
//
// Thread safety: used by one measuring thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "pollperf/cycle_stamp.hpp"
#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/payload.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

template <class Path>
class PingPong {
public:
    /// `connections`: the near ends are 0 to connections - 1. With Role::both, the far ends follow them.
    PingPong(Path& path, const Workload& workload, Watch& watch, unsigned connections)
        : path_(path),
          workload_(workload),
          watch_(watch),
          messages_(path, workload, watch),
          connections_(connections),
          words_(connections) {}

    /// Runs one iteration for each element of `samples`, and stores its cycles there. The role is both or client.
    void run(Role role, std::span<std::uint64_t> samples) {
        if (samples.empty()) {
            return;
        }
        workload_.verify ? run_verify<true>(role, samples) : run_verify<false>(role, samples);
    }

    /// Answers a client until `stop` is true.
    void serve(const std::atomic<bool>& stop) {
        if (workload_.one_sided) {
            return;
        }
        workload_.verify ? serve_verify<true>(stop) : serve_verify<false>(stop);
    }

private:
    template <bool kVerify>
    void run_verify(Role role, std::span<std::uint64_t> samples) {
        if (workload_.one_sided) {
            one_sided<kVerify>(samples);
        } else if (takes_receive(workload_.op)) {
            role == Role::both ? messages_both<kVerify>(samples) : messages_client<kVerify>(samples);
        } else {
            role == Role::both ? write_both<kVerify>(samples) : write_client<kVerify>(samples);
        }
        for (unsigned end = 0; end < (role == Role::both ? 2 * connections_ : connections_); ++end) {
            messages_.drain(end);
        }
    }

    /// The connection of the next iteration.
    [[nodiscard]] unsigned turn() noexcept {
        const unsigned now = next_;
        next_ = next_ + 1 == connections_ ? 0 : next_ + 1;
        return now;
    }
    /// The message of this turn has not come. It may come when serve() is called again.
    void take_turn_back(unsigned near) noexcept {
        next_ = near;
        --path_.end(near).sequence;
    }
    /// Whether this is the last iteration on its connection.
    [[nodiscard]] bool is_last(std::size_t i, std::size_t all) const noexcept { return i + connections_ >= all; }

    // ---- send and write-imm: an end waits for the completion of its receive ----

    template <bool kVerify>
    void messages_both(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const bool last = is_last(i, samples.size());
            const unsigned near = turn();
            const unsigned far = near + connections_;
            messages_.template next_message<kVerify>(near);
            messages_.template next_message<kVerify>(far);
            if constexpr (kVerify) {
                begin = stamp();
            }
            messages_.issue(near, last);
            messages_.give_back(near);
            await_message(far);
            messages_.issue(far, last);
            if constexpr (!kVerify) {
                messages_.give_back(far);
            }
            await_message(near);
            begin = take_sample(samples[i], begin);
            messages_.template check_message<kVerify>(far);
            messages_.template check_message<kVerify>(near);
            if constexpr (kVerify) {
                messages_.give_back(far);
            }
        }
    }

    template <bool kVerify>
    void messages_client(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const unsigned near = turn();
            messages_.template next_message<kVerify>(near);
            if constexpr (kVerify) {
                begin = stamp();
            }
            messages_.issue(near, is_last(i, samples.size()));
            messages_.give_back(near);
            await_message(near);
            begin = take_sample(samples[i], begin);
            messages_.template check_message<kVerify>(near);
        }
    }

    template <bool kVerify>
    void messages_server(const std::atomic<bool>& stop) {
        for (;;) {
            const unsigned near = turn();
            messages_.template next_message<kVerify>(near);
            const auto& state = path_.end(near);
            // Relaxed: `stop` publishes no other data.
            watch_.until(path_, near, "a message",
                         [&] { return state.has_message() || stop.load(std::memory_order_relaxed); });
            if (!state.has_message()) {
                take_turn_back(near);
                return;
            }
            messages_.template check_message<kVerify>(near);
            messages_.issue(near, false);
            messages_.give_back(near);
        }
    }

    void await_message(unsigned end) {
        const auto& state = path_.end(end);
        watch_.until(path_, end, "a message", [&] { return state.has_message(); });
    }

    // ---- write: an end waits until the last byte in its memory changes ----

    template <bool kVerify>
    void write_both(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const bool last = is_last(i, samples.size());
            const unsigned near = turn();
            const unsigned far = near + connections_;
            messages_.template next_message<kVerify>(near);
            messages_.template next_message<kVerify>(far);
            if constexpr (kVerify) {
                begin = stamp();
            }
            messages_.issue(near, last);
            await_bytes(far);
            messages_.issue(far, last);
            await_bytes(near);
            begin = take_sample(samples[i], begin);
            messages_.template check_bytes<kVerify>(far);
            messages_.template check_bytes<kVerify>(near);
        }
    }

    template <bool kVerify>
    void write_client(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const unsigned near = turn();
            messages_.template next_message<kVerify>(near);
            if constexpr (kVerify) {
                begin = stamp();
            }
            messages_.issue(near, is_last(i, samples.size()));
            await_bytes(near);
            begin = take_sample(samples[i], begin);
            messages_.template check_bytes<kVerify>(near);
        }
    }

    template <bool kVerify>
    void write_server(const std::atomic<bool>& stop) {
        for (;;) {
            const unsigned near = turn();
            messages_.template next_message<kVerify>(near);
            const auto [last, wanted] = last_byte(near);
            watch_.until(path_, near, "the peer's write",
                         [&] { return load_byte(last) == wanted || stop.load(std::memory_order_relaxed); });
            if (load_byte(last) != wanted) {
                take_turn_back(near);
                return;
            }
            messages_.template check_bytes<kVerify>(near);
            messages_.issue(near, false);
        }
    }

    struct LastByte {
        const std::byte* place;
        std::uint8_t wanted;
    };
    // Both ends count messages in the same way. An end waits for the peer's message with the end's own sequence number.
    [[nodiscard]] LastByte last_byte(unsigned end) {
        const auto& state = path_.end(end);
        return {state.memory + path_.layout().in(0) + workload_.size - 1, pattern(state.sequence, workload_.size - 1)};
    }
    void await_bytes(unsigned end) {
        const auto [last, wanted] = last_byte(end);
        watch_.until(path_, end, "the peer's write", [&] { return load_byte(last) == wanted; });
    }

    // ---- reads, atomics, and writes to a peer that does not answer: an end waits for its own completion ----

    template <bool kVerify>
    void one_sided(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const unsigned near = turn();
            const auto& state = path_.end(near);
            if constexpr (kVerify) {
                before_one_sided(near);
                begin = stamp();
            }
            messages_.issue(near, true);
            watch_.until(path_, near, "the completion of its request", [&] { return state.idle(); });
            begin = take_sample(samples[i], begin);
            if constexpr (kVerify) {
                after_one_sided(near);
            }
        }
    }

    void before_one_sided(unsigned near) {
        auto& state = path_.end(near);
        ++state.sequence;
        if (is_atomic(workload_.op)) {
            return;
        }
        fill(messages_.out(near), state.sequence);
        if (workload_.op == Op::read) {
            run_once(Op::write, near);
            std::memset(messages_.out(near).data(), 0, workload_.size);
        }
    }

    void after_one_sided(unsigned near) {
        if (is_atomic(workload_.op)) {
            check_word(near);
            return;
        }
        if (workload_.op == Op::write) {
            std::memset(messages_.out(near).data(), 0, workload_.size);
            run_once(Op::read, near);
        }
        messages_.check(messages_.out(near), near);
    }

    void check_word(unsigned near) {
        std::uint64_t value = 0;
        std::memcpy(&value, messages_.out(near).data(), sizeof value);
        Word& word = words_[near];
        if (word.known && value != word.expected) {
            throw MeasurementError(fmt::format("path {}, {} {}: the word held {:#x}, not {:#x}", path_name(Path::kKind),
                                               op_name(workload_.op), path_.end(near).sequence, value, word.expected));
        }
        word.known = true;  // the first result of a fetch-add is the word's initial value
        word.expected = value + 1;
    }

    /// Does one operation that is not timed.
    void run_once(Op op, unsigned near) {
        path_.post_once(op, near);
        const auto& state = path_.end(near);
        watch_.until(path_, near, "an operation that checks the data", [&] { return state.idle(); });
    }

    template <bool kVerify>
    void serve_verify(const std::atomic<bool>& stop) {
        takes_receive(workload_.op) ? messages_server<kVerify>(stop) : write_server<kVerify>(stop);
    }

    [[nodiscard]] static std::uint64_t take_sample(std::uint64_t& sample, std::uint64_t begin) noexcept {
        const std::uint64_t now = stamp();
        sample = now - begin;
        return now;
    }

    struct Word {
        bool known = false;
        std::uint64_t expected = 0;
    };

    Path& path_;
    const Workload workload_;
    Watch& watch_;
    Messages<Path> messages_;
    const unsigned connections_;
    unsigned next_ = 0;
    std::vector<Word> words_;  ///< of each connection: what its atomics should find
};

}  // namespace pollcore::perf
