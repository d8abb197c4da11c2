// The timed loops: one loop for each way in which two ends can exchange messages. The path and the checking of data are
// template parameters, and each role has its own function, so that no iteration has to test for them.
//
// Each iteration ends with a time stamp. A sample is the time from one stamp to the next. With kVerify, the loop makes
// and checks data between the end of one sample and the beginning of the next sample.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "cycle_stamp.hpp"
#include "messages.hpp"
#include "payload.hpp"
#include "watch.hpp"
#include "workload.hpp"

namespace pollcore::perf {

template <class Path>
class TimedLoops {
public:
    TimedLoops(Path& path, const Workload& workload, Watch& watch)
        : path_(path), workload_(workload), watch_(watch), messages_(path, workload, watch) {}

    /// Runs one iteration for each element of `samples`, and stores its cycles there.
    void run(Role role, std::span<std::uint64_t> samples) {
        if (samples.empty()) {
            return;
        }
        workload_.verify ? run_verify<true>(role, samples) : run_verify<false>(role, samples);
    }

private:
    template <bool kVerify>
    void run_verify(Role role, std::span<std::uint64_t> samples) {
        if (workload_.one_sided) {
            one_sided<kVerify>(samples);
        } else if (workload_.op == Op::send) {
            role == Role::both     ? send_both<kVerify>(samples)
            : role == Role::client ? send_client<kVerify>(samples)
                                   : send_server<kVerify>(samples);
        } else {
            role == Role::both     ? write_both<kVerify>(samples)
            : role == Role::client ? write_client<kVerify>(samples)
                                   : write_server<kVerify>(samples);
        }
        messages_.drain(kNear);
        if (role == Role::both) {
            messages_.drain(kFar);
        }
    }

    // ---- send: an end waits for the completion of its receive ----

    template <bool kVerify>
    void send_both(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const bool last = i + 1 == samples.size();
            messages_.template next_message<kVerify>(kNear);
            messages_.template next_message<kVerify>(kFar);
            if constexpr (kVerify) {
                begin = stamp();
            }
            path_.issue(kNear, last);
            give_back(kNear);
            await_message(kFar);
            path_.issue(kFar, last);
            if constexpr (!kVerify) {
                give_back(kFar);
            }
            await_message(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_message<kVerify>(kFar);
            messages_.template check_message<kVerify>(kNear);
            if constexpr (kVerify) {
                give_back(kFar);
            }
        }
        give_back(kNear);
    }

    template <bool kVerify>
    void send_client(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            messages_.template next_message<kVerify>(kNear);
            if constexpr (kVerify) {
                begin = stamp();
            }
            path_.issue(kNear, i + 1 == samples.size());
            give_back(kNear);
            await_message(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_message<kVerify>(kNear);
        }
        give_back(kNear);
    }

    // A sample of the server goes from one message of the client to the next, which is also a round trip.
    template <bool kVerify>
    void send_server(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            messages_.template next_message<kVerify>(kNear);
            await_message(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_message<kVerify>(kNear);
            path_.issue(kNear, i + 1 == samples.size());
            give_back(kNear);
        }
    }

    void await_message(unsigned end) {
        const EndState& state = path_.end(end);
        watch_.until(path_, end, "a message", [&] { return state.has_message(); });
    }

    /// Posts receives again if there are enough for a batch. Called after the next message is sent, so that the message
    /// does not wait for the posting.
    void give_back(unsigned end) {
        if (path_.end(end).repost_due()) {
            path_.repost(end);
        }
    }

    // ---- write: an end waits until the last byte in its memory changes ----

    template <bool kVerify>
    void write_both(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const bool last = i + 1 == samples.size();
            messages_.template next_message<kVerify>(kNear);
            messages_.template next_message<kVerify>(kFar);
            if constexpr (kVerify) {
                begin = stamp();
            }
            path_.issue(kNear, last);
            await_bytes(kFar);
            path_.issue(kFar, last);
            await_bytes(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_bytes<kVerify>(kFar);
            messages_.template check_bytes<kVerify>(kNear);
        }
    }

    template <bool kVerify>
    void write_client(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            messages_.template next_message<kVerify>(kNear);
            if constexpr (kVerify) {
                begin = stamp();
            }
            path_.issue(kNear, i + 1 == samples.size());
            await_bytes(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_bytes<kVerify>(kNear);
        }
    }

    template <bool kVerify>
    void write_server(std::span<std::uint64_t> samples) {
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            messages_.template next_message<kVerify>(kNear);
            await_bytes(kNear);
            begin = take_sample(samples[i], begin);
            messages_.template check_bytes<kVerify>(kNear);
            path_.issue(kNear, i + 1 == samples.size());
        }
    }

    // Both ends count messages in the same way. An end waits for the peer's message with the end's own sequence number.
    void await_bytes(unsigned end) {
        const EndState& state = path_.end(end);
        const std::byte* last = state.memory + path_.layout().in() + workload_.size - 1;
        const std::uint8_t wanted = pattern(state.sequence, workload_.size - 1);
        watch_.until(path_, end, "the peer's write", [&] { return load_byte(last) == wanted; });
    }

    // ---- read, fetch-add, and writes to a peer that does not answer: an end waits for its own completion ----

    template <bool kVerify>
    void one_sided(std::span<std::uint64_t> samples) {
        EndState& near = path_.end(kNear);
        std::uint64_t begin = stamp();
        for (std::size_t i = 0; i < samples.size(); ++i) {
            if constexpr (kVerify) {
                before_one_sided();
                begin = stamp();
            }
            path_.issue(kNear, true);
            watch_.until(path_, kNear, "the completion of its request",
                         [&] { return near.completed == near.signaled; });
            begin = take_sample(samples[i], begin);
            if constexpr (kVerify) {
                after_one_sided();
            }
        }
    }

    void before_one_sided() {
        EndState& near = path_.end(kNear);
        ++near.sequence;
        if (workload_.op == Op::fetch_add) {
            return;
        }
        fill(messages_.out(kNear), near.sequence);
        if (workload_.op == Op::read) {
            path_.run_once(Op::write, watch_);
            std::memset(messages_.out(kNear).data(), 0, workload_.size);
        }
    }

    void after_one_sided() {
        EndState& near = path_.end(kNear);
        if (workload_.op == Op::fetch_add) {
            std::uint64_t value = 0;
            std::memcpy(&value, messages_.out(kNear).data(), sizeof value);
            if (adding_ && value != expected_value_) {
                throw MeasurementError(fmt::format("path {}, fetch-add {}: the word held {:#x}, not {:#x}",
                                                   path_name(Path::kKind), near.sequence, value, expected_value_));
            }
            adding_ = true;  // the first result is the word's initial value
            expected_value_ = value + 1;
            return;
        }
        if (workload_.op == Op::write) {
            std::memset(messages_.out(kNear).data(), 0, workload_.size);
            path_.run_once(Op::read, watch_);
        }
        messages_.check_out(kNear);
    }

    [[nodiscard]] static std::uint64_t take_sample(std::uint64_t& sample, std::uint64_t begin) noexcept {
        const std::uint64_t now = stamp();
        sample = now - begin;
        return now;
    }

    Path& path_;
    const Workload workload_;
    Watch& watch_;
    Messages<Path> messages_;
    bool adding_ = false;
    std::uint64_t expected_value_ = 0;
};

}  // namespace pollcore::perf
