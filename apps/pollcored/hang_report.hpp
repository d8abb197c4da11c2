// Logs which threads hang, and where they hang: the system call, the kernel's function, the call stack.
//
// HangReport has its own thread, because a report may take long. A report waits for the hanging thread's answer, and
// possibly for a lock that the hanging thread holds, or for the reader of the log.
//
// Thread safety: tell() by one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "backtrace.hpp"
#include "hang_check.hpp"

namespace pollcore::daemon {

class HangReport {
public:
    /// From now on only this object may use `backtrace`.
    explicit HangReport(Backtrace& backtrace);
    /// Writes the findings that still wait to be written.
    ~HangReport();
    HangReport(const HangReport&) = delete;
    HangReport& operator=(const HangReport&) = delete;

    /// Returns at once. If too many findings wait to be written, new findings are dropped. `watched` means that there
    /// is a service manager's watchdog. The log then also says when the watchdog is not fed.
    void tell(const HangCheck::Findings& findings, bool watched);

private:
    struct Entry {
        enum class What { begun, starving, over } what;
        ThreadHealth thread;
    };

    void loop();
    void write(const Entry& entry);

    Backtrace& backtrace_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry> entries_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace pollcore::daemon
