// The control thread: runs what the control side does, one job after the other. Jobs may block in verbs
// calls (H17); nobody's loop waits for them except the caller that asked.
//
// Thread safety: post and run from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace pollcore {

class Executor {
public:
    Executor(const std::string& name, const std::vector<int>& cpus);
    /// Runs what was posted before, then ends.
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Throws Error(EAGAIN) when kJobsMax jobs wait.
    void post(std::function<void()> job);
    /// The same without that limit, for a loop that posts each of its few jobs again only after it ran.
    void post_always(std::function<void()> job);

    /// Runs `job` there and waits for its result or exception. From the control thread itself: at once.
    template <class F>
    auto run(F&& job) -> std::invoke_result_t<F> {
        if (std::this_thread::get_id() == thread_.get_id()) {
            return job();
        }
        using Result = std::invoke_result_t<F>;
        std::packaged_task<Result()> task([&job]() -> Result { return job(); });
        std::future<Result> result = task.get_future();
        post([&task] { task(); });
        return result.get();
    }

    static constexpr std::size_t kJobsMax = 4096;

private:
    void loop() noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore
