// A function of the program takes the log's lines: each line once, in order, on the log's own thread, whatever the
// function does.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "log_capture.hpp"
#include "pollcore/logging.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

constexpr auto kDelivered = 20s;

class LogFunctionTest : public testing::Test {
protected:
    void SetUp() override {
        log_info("begin");  // lets the log report lines that an earlier test may have lost
        lost_before_ = log_lines_lost();
    }
    void TearDown() override {
        set_log_function({});
        const LogWriter last;  // its destructor waits for the end of the log's thread
    }

    /// A function that keeps the lines, as "level text".
    LogFunction keep() {
        return [this](const LogLine& line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(std::to_string(static_cast<int>(line.level)) + " " + std::string(line.text));
        };
    }
    [[nodiscard]] std::vector<std::string> lines() {
        EXPECT_TRUE(flush_log(kDelivered));
        const std::lock_guard lock(mutex_);
        return lines_;
    }
    [[nodiscard]] std::uint64_t lost() const { return log_lines_lost() - lost_before_; }

    test::LogCapture stderr_{LogLevel::info};

private:
    std::mutex mutex_;
    std::vector<std::string> lines_;
    std::uint64_t lost_before_ = 0;
};

TEST_F(LogFunctionTest, takes_the_lines_from_its_setting_to_its_end) {
    log_info("before");
    set_log_function(keep());
    log_error("queue pair {}", 7);
    log_debug("left out");
    log_info("two\nlines");
    set_log_function({});
    log_info("after");
    EXPECT_EQ(lines(), (std::vector<std::string>{"0 queue pair 7", "2 two\\nlines"}));
    const std::string others = stderr_.text();
    EXPECT_NE(others.find("info: before\n"), std::string::npos) << others;
    EXPECT_NE(others.find("info: after\n"), std::string::npos) << others;
    EXPECT_EQ(others.find("queue pair"), std::string::npos) << others;
    EXPECT_EQ(lost(), 0u);
}

TEST_F(LogFunctionTest, is_called_on_one_thread_that_is_the_librarys) {
    std::set<std::thread::id> called_on;
    std::vector<std::chrono::system_clock::time_point> times;
    set_log_function([&](const LogLine& line) {
        called_on.insert(std::this_thread::get_id());
        times.push_back(line.time);
    });
    const auto before = std::chrono::system_clock::now();
    std::thread([] { log_info("from another thread"); }).join();
    log_info("from this thread");
    set_log_function({});
    EXPECT_EQ(called_on.size(), 1u);
    EXPECT_FALSE(called_on.contains(std::this_thread::get_id()));
    ASSERT_EQ(times.size(), 2u);
    EXPECT_LE(before, times[0]);
    EXPECT_LE(times[0], times[1]);
}

// Threads log while another thread sets functions and takes them away. Each line is in one place. A function is not
// called any more when the call that replaced it has returned.
TEST_F(LogFunctionTest, gets_each_line_once_however_often_it_is_set) {
    constexpr int kThreads = 3;
    constexpr std::size_t kPlaces = 90;
    constexpr std::size_t kLinesInAll = 1000;  // taken by functions, at least
    struct Place {
        std::atomic<bool> in_use{true};
        std::vector<std::string> lines;  // only the log's thread writes it, while `in_use`
    };
    std::vector<std::unique_ptr<Place>> places;
    std::atomic<int> late{0};
    std::atomic<bool> setting{true};
    std::atomic<std::size_t> taken{0};
    std::vector<int> logged(kThreads, 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([t, &setting, &own = logged[static_cast<std::size_t>(t)]] {
            for (; setting; ++own) {
                log_info("thread {} line {}", t, own);
                if (own % 100 == 0) {
                    (void)flush_log(kDelivered);  // so that no line is lost because too many wait
                }
            }
        });
    }
    while (places.size() < kPlaces || taken < kLinesInAll) {
        places.push_back(std::make_unique<Place>());
        Place& place = *places.back();
        set_log_function([&place, &late, &taken](const LogLine& line) {
            late += !place.in_use;
            ++taken;
            place.lines.emplace_back(line.text);
            std::this_thread::yield();
            late += !place.in_use;
        });
        if (places.size() % 3 == 0) {
            set_log_function({});
            place.in_use = false;
        } else if (places.size() > 1) {
            places[places.size() - 2]->in_use = false;
        }
    }
    setting = false;
    for (std::thread& thread : threads) {
        thread.join();
    }
    set_log_function({});
    EXPECT_EQ(late, 0);
    EXPECT_EQ(lost(), 0u);

    const std::string others = stderr_.text();
    std::map<std::pair<int, int>, int> found;
    const auto find = [&](const std::string& line) {
        int thread = -1;
        int number = -1;
        EXPECT_EQ(std::sscanf(line.c_str(), "thread %d line %d", &thread, &number), 2) << line;
        ++found[{thread, number}];
        return std::pair(thread, number);
    };
    for (std::size_t at = others.find("thread "); at != std::string::npos; at = others.find("thread ", at + 1)) {
        (void)find(others.substr(at, others.find('\n', at) - at));
    }
    std::vector<int> next(kThreads, 0);
    for (const auto& place : places) {
        for (const std::string& line : place->lines) {
            const auto [thread, number] = find(line);
            ASSERT_GE(number, next.at(static_cast<std::size_t>(thread))) << "a thread's lines come in order";
            next[static_cast<std::size_t>(thread)] = number + 1;
        }
    }
    for (int t = 0; t < kThreads; ++t) {
        for (int i = 0; i < logged[static_cast<std::size_t>(t)]; ++i) {
            ASSERT_EQ((found[{t, i}]), 1) << "thread " << t << " line " << i;
        }
    }
}

TEST_F(LogFunctionTest, keeps_nobody_waiting_and_a_later_line_says_what_is_missing) {
    std::promise<void> open;
    std::shared_future<void> gate = open.get_future().share();
    std::promise<void> entered;
    std::vector<std::string> texts;
    set_log_function([&, first = true](const LogLine& line) mutable {
        if (std::exchange(first, false)) {
            entered.set_value();
            gate.wait();
        }
        texts.emplace_back(line.text);
    });
    log_info("first");
    entered.get_future().wait();
    for (std::size_t i = 0; i < kLogLinesMax + 3; ++i) {  // returns although the function is blocked
        log_info("line {}", i);
    }
    EXPECT_EQ(lost(), 3u);
    open.set_value();
    EXPECT_TRUE(flush_log(kDelivered));
    log_info("back");
    set_log_function({});
    ASSERT_EQ(texts.size(), 1 + kLogLinesMax + 2);
    EXPECT_EQ(texts[kLogLinesMax], "line 1023");
    EXPECT_EQ(texts[kLogLinesMax + 1], "3 log lines before this could not be written");
    EXPECT_EQ(texts[kLogLinesMax + 2], "back");
}

TEST_F(LogFunctionTest, loses_the_line_at_which_it_throws) {
    std::vector<std::string> texts;
    set_log_function([&](const LogLine& line) {
        if (line.text == "bad") {
            throw std::runtime_error("refused");
        }
        texts.emplace_back(line.text);
    });
    log_info("good");
    log_info("bad");
    log_info("good again");
    set_log_function({});
    EXPECT_EQ(lost(), 1u);
    EXPECT_EQ(texts, (std::vector<std::string>{"good", "1 log lines before this could not be written", "good again"}));
}

TEST_F(LogFunctionTest, may_log_and_replace_itself) {
    set_log_function([&](const LogLine&) {
        EXPECT_TRUE(flush_log(kDelivered)) << "nothing else waits";
        log_info("by the function");
        EXPECT_FALSE(flush_log(kDelivered)) << "its own line cannot be delivered now";
        set_log_function(keep());
    });
    log_info("first");
    while (lines().empty()) {
        std::this_thread::yield();
    }
    EXPECT_EQ(lines(), std::vector<std::string>{"2 by the function"});

    set_log_function([&, kept = std::make_shared<int>(1)](const LogLine&) {
        set_log_function({});
        EXPECT_EQ(*kept, 1) << "it lives until it returns";
    });
    log_info("last");
    while (flush_log(kDelivered) && stderr_.text().find("after the last") == std::string::npos) {
        log_info("after the last");
    }
    EXPECT_EQ(stderr_.text().find("info: last"), std::string::npos);
    EXPECT_EQ(lost(), 0u);
}

TEST_F(LogFunctionTest, shares_the_thread_of_a_runtime_that_starts_later) {
    std::thread::id called_on;
    set_log_function([&](const LogLine&) { called_on = std::this_thread::get_id(); });
    std::thread::id settled_on;
    std::optional<LogWriter> of_a_runtime([&] { settled_on = std::this_thread::get_id(); });
    log_info("a line");
    EXPECT_TRUE(flush_log(kDelivered));
    EXPECT_EQ(settled_on, called_on) << "so the thread is not on a worker's CPU";
    of_a_runtime.reset();
    called_on = {};
    log_info("another line");
    EXPECT_TRUE(flush_log(kDelivered));
    EXPECT_EQ(called_on, settled_on) << "the function keeps the thread";
}

int status_of_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(body());
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
}

TEST_F(LogFunctionTest, is_not_called_in_a_forked_child) {
    set_log_function(keep());
    EXPECT_EQ(status_of_child([] {
                  log_info("line of a child");
                  set_log_function({});
                  return flush_log(0ms) ? 0 : 1;
              }),
              0);
    EXPECT_EQ(test::occurrences(stderr_.text(), "line of a child"), 1u);
    log_info("line of its parent");
    EXPECT_EQ(lines(), std::vector<std::string>{"2 line of its parent"});
}

#if !defined(__SANITIZE_THREAD__)  // tsan supports no threads in the forked child of a process that has threads
TEST_F(LogFunctionTest, may_be_set_in_a_forked_child) {
    set_log_function(keep());
    EXPECT_EQ(status_of_child([] {
                  int taken = 0;
                  set_log_function([&](const LogLine&) { ++taken; });
                  log_info("line of a child");
                  set_log_function({});
                  return taken == 1 ? 0 : 1;
              }),
              0);
    EXPECT_TRUE(lines().empty());
    EXPECT_EQ(test::occurrences(stderr_.text(), "child"), 0u);
}
#endif

TEST(LogFunctionDeathTest, gets_the_waiting_lines_before_exit) {
    EXPECT_EXIT(
        {
            set_log_function([](const LogLine& line) {
                std::fprintf(stderr, "mine: %.*s\n", static_cast<int>(line.text.size()), line.text.data());
            });
            for (int i = 0; i < 200; ++i) {
                log_warning("line {}", i);
            }
            std::exit(3);
        },
        testing::ExitedWithCode(3), "mine: line 199\n");
}

}  // namespace
}  // namespace pollcore
