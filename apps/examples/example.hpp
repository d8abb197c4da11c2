// Functions that the examples share: they submit requests and wait for completions. Anything unexpected ends the
// program.
//
// Thread safety: call a function only on the thread that uses the session.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "pollcore/attach.hpp"
#include "pollcore/runtime.hpp"

namespace example {

inline void accepted(pollcore::Refusal refusal) {
    if (refusal != pollcore::Refusal::none) {
        throw std::runtime_error(fmt::format("the request was not accepted: {}", pollcore::refusal_name(refusal)));
    }
}

inline void submit(pollcore::Session& session, const pollcore::WorkRequest& request) {
    accepted(session.try_submit(request));
}

inline void succeeded(const pollcore::Completion& completion) {
    if (!completion.ok()) {
        throw std::runtime_error(fmt::format("request {} completed with {} ({})", completion.tag,
                                             pollcore::status_name(completion.status),
                                             pollcore::status_text(completion.status)));
    }
}

/// Spins for the next completion of the session, for at least 10 seconds before it gives up. Yields the CPU from time
/// to time, because on a machine with one CPU the worker needs it. Counts its turns instead of reading a clock, so that
/// a process that was stopped (SIGSTOP) does not give up when it goes on.
template <class Completion = pollcore::Completion>
Completion next_completion(pollcore::Session& session) {
    constexpr std::chrono::microseconds kBeforeOthers{20};
    constexpr int kTurns = std::chrono::seconds(10) / kBeforeOthers;
    Completion completion;
    for (int turn = 0; session.poll({&completion, 1}, kBeforeOthers) == 0; ++turn) {
        if (turn == kTurns) {
            throw std::runtime_error("no completion came");
        }
        std::this_thread::yield();
    }
    succeeded(completion);
    return completion;
}

/// Connects two queue pairs of this process. Programs on two hosts send each other their QpInfo, or connect by address
/// (Context::listen and QueuePair::connect).
inline void connect(pollcore::QueuePair& one, pollcore::QueuePair& other) {
    const pollcore::QpInfo info = one.info();
    one.connect(other.info());
    other.connect(info);
}

/// The Context that makes the objects: a runtime inside this program, or an attachment to a daemon. All other code of a
/// program works with both.
class Place {
public:
    /// `where` is a configuration file, or the socket of a daemon.
    explicit Place(const std::filesystem::path& where) {
        if (std::filesystem::is_socket(where)) {
            attachment_.emplace(pollcore::AttachOptions{.path = where.string(), .name = "example"});
        } else {
            runtime_.emplace(pollcore::load_config(where));
        }
    }

    [[nodiscard]] pollcore::Context& context() noexcept {
        return attachment_ ? static_cast<pollcore::Context&>(*attachment_) : *runtime_;
    }
    /// Attaches again if the daemon was lost. Returns false if there is no daemon, or if it was not lost.
    [[nodiscard]] bool came_back() {
        if (!attachment_ || !attachment_->lost()) {
            return false;
        }
        attachment_->reattach(std::chrono::minutes(1));
        return true;
    }

private:
    std::optional<pollcore::Runtime> runtime_;
    std::optional<pollcore::Attachment> attachment_;
};

/// The number that an argument of the program is.
inline std::uint64_t number(std::string_view text, std::uint64_t least,
                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
        throw std::runtime_error(fmt::format("\"{}\" is not accepted: a number from {} to {} is", text, least, most));
    }
    return value;
}

/// Runs `program`; an exception's text goes to stderr.
template <class Program>
int run(Program&& program) {
    try {
        program();
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}

}  // namespace example
