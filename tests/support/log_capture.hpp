// Redirects this process's log from stderr into a buffer for as long as the object lives.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "base/unique_fd.hpp"

namespace pollcore::test {

class LogCapture {
public:
    explicit LogCapture(LogLevel level) : file_(::memfd_create("log", MFD_CLOEXEC)), level_before_(log_level()) {
        // Several threads may write at once. Without O_APPEND they may write to the same place.
        if (!file_.valid() || ::fcntl(file_.get(), F_SETFL, O_APPEND) != 0) {
            throw std::runtime_error("no memfd for the log");
        }
        set_log_output(file_.get());
        set_log_level(level);
    }
    ~LogCapture() {
        set_log_output(STDERR_FILENO);
        set_log_level(level_before_);
    }
    LogCapture(const LogCapture&) = delete;
    LogCapture& operator=(const LogCapture&) = delete;

    [[nodiscard]] std::string text() const {
        if (!flush_log(std::chrono::seconds(20))) {
            throw std::runtime_error("the log is not written");
        }
        std::string all(static_cast<std::size_t>(::lseek(file_.get(), 0, SEEK_END)), '\0');
        all.resize(static_cast<std::size_t>(::pread(file_.get(), all.data(), all.size(), 0)));
        return all;
    }

private:
    UniqueFd file_;
    LogLevel level_before_;
};

/// How many times `part` occurs in `text`.
[[nodiscard]] inline std::size_t occurrences(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
        ++count;
    }
    return count;
}

}  // namespace pollcore::test
