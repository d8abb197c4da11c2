// The control side's jobs, one after the other. Jobs may block in verbs calls (H17); nobody waits for them except the
// caller that asked.
//
// Thread safety: post and run from any thread.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace pollcore {

class Executor {
public:
    /// Runs what was posted before, then ends.
    virtual ~Executor() = default;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Runs `job` there and waits for its result or exception. From a job: at once. Throws Error(EAGAIN) when too many
    /// wait already.
    template <class F>
    auto run(F&& job) -> std::invoke_result_t<F> {
        using Result = std::invoke_result_t<F>;
        if (is_here()) {
            return job();
        }
        std::exception_ptr failure;
        std::conditional_t<std::is_void_v<Result>, std::optional<bool>, std::optional<Result>> result;
        perform([&] {
            try {
                if constexpr (std::is_void_v<Result>) {
                    job();
                } else {
                    result.emplace(job());
                }
            } catch (...) {
                failure = std::current_exception();
            }
        });
        if (failure) {
            std::rethrow_exception(std::move(failure));
        }
        if constexpr (!std::is_void_v<Result>) {
            return std::move(*result);
        }
    }

    /// Without waiting and without that limit, for a loop that posts each of its few jobs again only after it ran.
    virtual void post_always(std::function<void()> job) = 0;

protected:
    Executor() = default;

private:
    /// Whether the caller is one of the jobs.
    [[nodiscard]] virtual bool is_here() const noexcept = 0;
    /// Runs `job`, which does not throw, and returns when it has run.
    virtual void perform(std::function<void()> job) = 0;
};

}  // namespace pollcore
