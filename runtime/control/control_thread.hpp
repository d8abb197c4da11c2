// A thread of the runtime's own that runs the control side's jobs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "control/executor.hpp"

namespace pollcore {

class ControlThread final : public Executor {
public:
    /// `hang_limit`: how long run() waits for its job to begin.
    ControlThread(const std::string& name, const std::vector<int>& cpus, std::chrono::milliseconds hang_limit);
    ~ControlThread() override;

    void post_always(std::function<void()> job) override;

    static constexpr std::size_t kJobsMax = 4096;

private:
    // A job that somebody waits for. It lies on that one's stack.
    struct Call {
        std::condition_variable ended_changed;
        bool begun = false;
        bool ended = false;
    };
    struct Job {
        std::function<void()> run;
        Call* call = nullptr;  // null: nobody waits
    };

    [[nodiscard]] bool is_here() const noexcept override { return std::this_thread::get_id() == thread_.get_id(); }
    void perform(const std::function<void()>& job, Patience patience) override;
    /// With mutex_.
    void add(Job job);
    void withdraw(const Call& call);
    [[nodiscard]] std::string why_late() const;
    void loop() noexcept;

    const std::string name_;
    const std::chrono::milliseconds hang_limit_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;
    bool idle_ = false;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore
