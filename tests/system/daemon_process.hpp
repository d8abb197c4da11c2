// Runs a pollcored for the tests: spawns the process, receives its notifications as a service manager does, sends it
// signals and waits for its end.
//
// Thread safety: one thread. The destructor of a process that still runs kills it and waits for it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"

namespace pollcore::test {

using namespace std::chrono_literals;

// Long enough for a machine that is busy with a build at the same time. A test that passes never waits that long.
inline constexpr auto kPatience = 120s;

/// Returns the path of the daemon under test: $POLLCORED if that is set, otherwise the daemon of this program's build.
inline std::string pollcored_path() {
    const char* given = std::getenv("POLLCORED");
    return given != nullptr ? given
                            : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
                                  "apps/pollcored/pollcored";
}

/// A directory that the destructor removes with its content.
class TemporaryDirectory {
public:
    TemporaryDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "pollcored-test-XXXXXX").native();
        if (::mkdtemp(pattern.data()) == nullptr) {
            throw std::runtime_error("mkdtemp " + pattern + ": " + std::strerror(errno));
        }
        path_ = pattern;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;  // a leftover directory does not matter
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::filesystem::path write(const std::string& name, const std::string& text) const {
        std::ofstream(path_ / name) << text;
        return path_ / name;
    }

private:
    std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

/// The service manager's end of sd_notify(3).
class NotifySocket {
public:
    explicit NotifySocket(const std::filesystem::path& path)
        : path_(path), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path_.native().copy(address.sun_path, sizeof(address.sun_path) - 1);
        if (!fd_.valid() || ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
            throw std::runtime_error("socket at " + path.native() + ": " + std::strerror(errno));
        }
    }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    /// Returns the next message, or nullopt if no message came within `timeout`.
    std::optional<std::string> receive(std::chrono::milliseconds timeout) {
        pollfd ready{.fd = fd_.get(), .events = POLLIN, .revents = 0};
        if (::poll(&ready, 1, static_cast<int>(timeout.count())) != 1) {
            return std::nullopt;
        }
        std::string message(4096, '\0');
        const ssize_t length = ::recv(fd_.get(), message.data(), message.size(), 0);
        message.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
        return message;
    }

    /// Takes messages until one contains `text`. Returns this message, or nullopt if it did not come within `timeout`.
    std::optional<std::string> await(const std::string& text, std::chrono::milliseconds timeout = kPatience) {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        for (;;) {
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
            if (left <= 0ms) {
                return std::nullopt;
            }
            const std::optional<std::string> message = receive(left);
            if (message && message->find(text) != std::string::npos) {
                return message;
            }
        }
    }

private:
    std::filesystem::path path_;
    UniqueFd fd_;
};

class Process {
public:
    /// Starts the program arguments[0] with the other arguments. The program gets this process's environment, in which
    /// `environment` adds or replaces variables. Its output goes to files in `directory`.
    Process(std::vector<std::string> arguments, const std::vector<std::string>& environment,
            const std::filesystem::path& directory)
        : out_(directory / ("out-" + next_name())), err_(directory / ("err-" + next_name())) {
        std::vector<std::string> variables;
        for (char** variable = environ; *variable != nullptr; ++variable) {
            // Leaves out the variables that a service manager may have set for this test.
            const std::string text = *variable;
            const std::string name = text.substr(0, text.find('=') + 1);
            if (std::none_of(environment.begin(), environment.end(),
                             [&](const std::string& given) { return given.starts_with(name); }) &&
                !text.starts_with("NOTIFY_SOCKET=") && !text.starts_with("WATCHDOG_") &&
                !text.starts_with("JOURNAL_STREAM=")) {
                variables.push_back(text);
            }
        }
        variables.insert(variables.end(), environment.begin(), environment.end());

        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 1, out_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        posix_spawn_file_actions_addopen(&files, 2, err_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        const int error = ::posix_spawn(&pid_, arguments.front().c_str(), &files, nullptr, pointers(arguments).data(),
                                        pointers(variables).data());
        posix_spawn_file_actions_destroy(&files);
        if (error != 0) {
            throw std::runtime_error("starting " + arguments.front() + ": " + std::strerror(error));
        }
    }
    ~Process() {
        if (std::uncaught_exceptions() != 0) {  // a failed test is hard to understand without this output
            std::fprintf(stderr, "process %d has written: %s\n", pid_, err().c_str());
        }
        if (!status_) {
            ::kill(pid_, SIGKILL);
            (void)wait();
        }
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    void signal(int number) const { ASSERT_EQ(::kill(pid_, number), 0) << std::strerror(errno); }
    /// Stops the process until SIGCONT. Returns only when all its threads have stopped, because the signal reaches them
    /// one by one.
    void halt() const {
        signal(SIGSTOP);
        siginfo_t stopped{};
        ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED), 0) << std::strerror(errno);
    }
    [[nodiscard]] std::string out() const { return read_file(out_); }
    [[nodiscard]] std::string err() const { return read_file(err_); }

    /// Waits for the end of the process. Returns its exit code, 128 + N if signal N ended it, or nullopt if it still
    /// runs after `timeout`.
    std::optional<int> wait(std::chrono::milliseconds timeout = kPatience) {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        while (!status_) {
            int status = 0;
            const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
            if (ended == pid_) {
                status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            } else if (std::chrono::steady_clock::now() >= deadline) {
                return std::nullopt;
            } else {
                std::this_thread::sleep_for(2ms);
            }
        }
        return status_;
    }

    /// Waits until the log of the process contains `text`. Returns false if that takes longer than `timeout`.
    [[nodiscard]] bool await_log(const std::string& text, std::chrono::milliseconds timeout = kPatience) const {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        while (err().find(text) == std::string::npos) {
            if (std::chrono::steady_clock::now() >= deadline) {
                return false;
            }
            std::this_thread::sleep_for(2ms);
        }
        return true;
    }

private:
    static std::string next_name() {
        static int count = 0;
        return std::to_string(count++);
    }
    static std::vector<char*> pointers(std::vector<std::string>& strings) {
        std::vector<char*> result;
        for (std::string& string : strings) {
            result.push_back(string.data());
        }
        result.push_back(nullptr);
        return result;
    }

    std::filesystem::path out_;
    std::filesystem::path err_;
    pid_t pid_ = -1;
    std::optional<int> status_;
};

}  // namespace pollcore::test
