// The control thread, which runs the control side's jobs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "control/executor.hpp"

namespace pollcore {

class ControlThread final : public Executor {
public:
    /// `hang_limit` is how long run() with limited patience waits for its job to begin.
    ControlThread(const std::string& name, const std::vector<int>& cpus, std::chrono::milliseconds hang_limit);
    ~ControlThread() override;

    void post_always(std::function<void()> job) override;

    static constexpr std::size_t kJobsMax = 4096;

private:
    // A job in the queue. If a caller waits for the job, the job is on the caller's stack and needs no allocation. The
    // queue owns all other jobs.
    struct Job {
        std::optional<JobRef> awaited;
        std::function<void()> posted;  // the job, if nobody waits for it
        Job* next = nullptr;
        std::condition_variable ended_changed;
        bool begun = false;
        bool ended = false;
    };

    [[nodiscard]] bool is_here() const noexcept override { return std::this_thread::get_id() == thread_.get_id(); }
    void perform(JobRef job, Patience patience) override;
    // The caller of add(), take() and withdraw() holds mutex_.
    void add(Job& job) noexcept;
    [[nodiscard]] Job& take() noexcept;
    void withdraw(const Job& job) noexcept;
    void run_posted(Job& job) const noexcept;
    [[nodiscard]] std::string why_late() const;
    void loop() noexcept;

    const std::string name_;
    const std::chrono::milliseconds hang_limit_;
    std::mutex mutex_;
    std::condition_variable changed_;
    Job* first_ = nullptr;
    Job** behind_last_ = &first_;
    std::size_t jobs_ = 0;
    bool idle_ = false;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore
