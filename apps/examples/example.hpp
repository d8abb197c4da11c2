// Functions that the examples share: they submit requests and wait for completions. Anything unexpected ends the
// program.
//
// Thread safety: call a function only on the thread that uses the session.
#pragma once

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <stdexcept>
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

/// Spins for the next completion of the session, for at most kPatience. Yields the CPU from time to time, because on a
/// machine with one CPU the worker needs it.
template <class Completion = pollcore::Completion>
Completion next_completion(pollcore::Session& session) {
    constexpr std::chrono::seconds kPatience{10};
    constexpr std::chrono::microseconds kBeforeOthers{20};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    Completion completion;
    while (session.poll({&completion, 1}, kBeforeOthers) == 0) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > deadline) {
            throw std::runtime_error("no completion came");
        }
    }
    if (!completion.ok()) {
        throw std::runtime_error(fmt::format("request {} completed with {} ({})", completion.tag,
                                             pollcore::status_name(completion.status),
                                             pollcore::status_text(completion.status)));
    }
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
