// A thread of the runtime's own that runs the control side's jobs.
#pragma once

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
    ControlThread(const std::string& name, const std::vector<int>& cpus);
    ~ControlThread() override;

    void post_always(std::function<void()> job) override;

    static constexpr std::size_t kJobsMax = 4096;

private:
    [[nodiscard]] bool is_here() const noexcept override { return std::this_thread::get_id() == thread_.get_id(); }
    void perform(std::function<void()> job) override;
    void loop() noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore
