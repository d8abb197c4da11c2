// Writes into the log which threads hang, and in what: the system call, the kernel's function, the call stack.
//
// On a thread of its own, since all of that may take a while, or wait: for an answer of the thread that hangs, for a
// lock that this one holds, or for whoever reads the log.
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
    /// `backtrace` is this object's alone from here on.
    explicit HangReport(Backtrace& backtrace);
    /// Writes what it was told before.
    ~HangReport();
    HangReport(const HangReport&) = delete;
    HangReport& operator=(const HangReport&) = delete;

    /// Returns at once. Of more than a few that wait to be written the last are left out. `watched`: there is a
    /// watchdog, which is starved.
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
