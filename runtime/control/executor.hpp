// Runs the control side's jobs, one after the other (D32). A job may block in a verbs call (H17). Then the jobs behind
// it wait, but the event loop does not.
//
// Thread safety: any thread may call post_always(), run() and heartbeat().
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

/// Refers to a job that the caller owns and waits for. A std::function may allocate, but a job that ends an object must
/// not fail for lack of memory (D29).
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
        limited,    ///< up to the executor's hang limit
        unlimited,  ///< for a job that ends an object: the caller cannot try again later, and may free the memory next
    };

    /// Runs the jobs that were posted before, then ends.
    virtual ~Executor() = default;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Runs `job` on the executor and waits for it. Returns its result, or throws its exception. Allocates nothing. If
    /// the caller is itself a job, `job` runs at once. With limited patience, run() throws Error(EAGAIN) if too many
    /// jobs wait already, and Error(ETIMEDOUT) if `job` has not begun in time; in both cases `job` will not run. If
    /// `job` has begun, run() waits until it ends, because `job` uses the caller's stack.
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

    /// Posts `job` and does not wait for it. The number of posted jobs is not limited. So a caller may have only few
    /// posted jobs at a time: for example, a loop posts a job again only after that job has run. An exception of the
    /// job is logged. If post_always() throws std::bad_alloc, nothing was posted.
    virtual void post_always(std::function<void()> job) = 0;

    /// The heartbeat's times are in nanoseconds of the platform's clock. The heartbeat begins anew with each job, and
    /// when a job is posted to an idle thread (D33).
    [[nodiscard]] const Heartbeat& heartbeat() const noexcept { return heartbeat_; }
    /// Begins the heartbeat anew. For a job that waits in small steps within a time limit, and so does not hang.
    void beat(std::uint64_t now) noexcept { heartbeat_.begin(now); }

protected:
    Executor() = default;

    Heartbeat heartbeat_;

private:
    /// Whether the calling code runs in a job.
    [[nodiscard]] virtual bool is_here() const noexcept = 0;
    /// Returns after `job` has run, or throws if `job` will not run. `job` itself does not throw.
    virtual void perform(JobRef job, Patience patience) = 0;
};

}  // namespace pollcore
