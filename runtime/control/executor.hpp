// The control side's jobs, one after the other. Jobs may block in verbs calls (H17); nobody waits for them except the
// caller that asked.
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

/// A job that stays its caller's, who waits for it. A std::function would allocate, and what ends something shall not
/// fail for that.
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
        limited,    ///< for as long as the executor may hang
        unlimited,  ///< for what ends something: nobody could do it later, and memory may be freed next
    };

    /// Runs what was posted before, then ends.
    virtual ~Executor() = default;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Runs `job` there and waits for its result or exception, and allocates nothing for that. From a job: at once.
    /// With limited patience it throws Error(EAGAIN) when too many wait already, and Error(ETIMEDOUT) when the job has
    /// not begun in time; it is not carried out then. One that has begun is waited for to its end, since it uses what
    /// its caller has.
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

    /// Without waiting and without that limit, for a loop that posts each of its few jobs again only after it ran. What
    /// the job throws is logged. Throws std::bad_alloc; then nothing was posted.
    virtual void post_always(std::function<void()> job) = 0;

    /// In nanoseconds of the platform's clock. It begins with each job, or when there is one to begin with.
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// From a job that waits in small steps, and within a limit: it does not hang.
    void beat(std::uint64_t now) noexcept { heartbeat_.begin(now); }

protected:
    Executor() = default;

    Heartbeat heartbeat_;

private:
    /// Whether the caller is one of the jobs.
    [[nodiscard]] virtual bool is_here() const noexcept = 0;
    /// Runs `job`, which does not throw, and returns when it has run; or throws when it will not run.
    virtual void perform(JobRef job, Patience patience) = 0;
};

}  // namespace pollcore
