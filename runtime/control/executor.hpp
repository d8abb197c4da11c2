// Runs the control side's jobs, one after the other (D32). A job may block in a verbs call (H17); only the caller that
// asked for the job waits for it.
//
// Thread safety: post, run and heartbeat from any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/heartbeat.hpp"

namespace pollcore {

/// A reference to a job that its caller owns and waits for. A std::function would allocate, and a job that ends
/// something must not fail for want of memory (D29).
class JobRef {
public:
    template <class F>
    requires(!std::same_as<F, JobRef>) explicit JobRef(F& job) noexcept
        : job_(const_cast<std::remove_const_t<F>*>(&job)), run_([](void* of) { (*static_cast<F*>(of))(); }) {}
    void operator()() const { run_(job_); }

private:
    void* job_;
    void (*run_)(void* job);
};

class Executor {
public:
    /// How long a caller waits for its job to begin.
    enum class Patience : std::uint8_t {
        limited,    ///< as long as the executor may hang
        unlimited,  ///< for a job that ends something: nobody could do it later, and its memory may be freed next
    };

    /// Runs the jobs that were posted before, then ends.
    virtual ~Executor() = default;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Runs `job` on the executor and waits for its result or exception. Allocates nothing. From within a job, `job`
    /// runs at once. With limited patience, throws Error(EAGAIN) when too many jobs wait already, and Error(ETIMEDOUT)
    /// when the job has not begun in time; the job is not carried out then. A job that has begun is waited for to its
    /// end, since it uses its caller's stack.
    template <class F>
    auto run(F&& job, Patience patience = Patience::limited) -> std::invoke_result_t<F> {
        using Result = std::invoke_result_t<F>;
        if (is_here()) {
            return job();
        }
        std::exception_ptr failure;
        std::conditional_t<std::is_void_v<Result>, std::optional<bool>, std::optional<Result>> result;
        const auto caught = [&] {
            try {
                if constexpr (std::is_void_v<Result>) {
                    job();
                } else {
                    result.emplace(job());
                }
            } catch (...) {
                failure = std::current_exception();
            }
        };
        perform(JobRef(caught), patience);
        if (failure) {
            std::rethrow_exception(std::move(failure));
        }
        if constexpr (!std::is_void_v<Result>) {
            return std::move(*result);
        }
    }

    /// Posts without waiting and without a limit on the number of jobs: for a loop that posts each of its few jobs
    /// again only after it has run. An exception of the job is logged. Throws std::bad_alloc; then nothing was posted.
    virtual void post_always(std::function<void()> job) = 0;

    /// In nanoseconds of the platform's clock. Each job begins it anew. If the thread is idle, it begins when a job is
    /// posted (D33).
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// From a job that waits in small steps and within a time limit, and so does not hang.
    void beat(std::uint64_t now) noexcept { heartbeat_.begin(now); }

protected:
    Executor() = default;

    Heartbeat heartbeat_;

private:
    /// Whether the caller is one of the jobs.
    [[nodiscard]] virtual bool is_here() const noexcept = 0;
    /// Runs `job`, which does not throw, and returns when it has run. Throws when it will not run.
    virtual void perform(JobRef job, Patience patience) = 0;
};

}  // namespace pollcore
