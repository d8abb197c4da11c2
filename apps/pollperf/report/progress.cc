#include "pollperf/report/progress.hpp"

#include <sys/ioctl.h>

#include <algorithm>

#include <fmt/format.h>

namespace pollcore::perf {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuiet = 1s;           // what takes no longer needs no line
constexpr auto kBetweenLines = 50ms;  // a faster line cannot be read, and costs time between rounds
constexpr std::size_t kUsualColumns = 80;
constexpr const char* kErase = "\r\x1b[K";

std::string time_left(std::chrono::duration<double> left) {
    const double seconds = left.count();
    return seconds < 100 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

}  // namespace

Progress::Progress(std::size_t steps, std::chrono::nanoseconds expected, int descriptor)
    : steps_(steps),
      expected_(expected),
      descriptor_(descriptor),
      terminal_(::isatty(descriptor) == 1),
      began_(Clock::now()) {}

Progress::~Progress() {
    if (shown_) {
        (void)!::write(descriptor_, kErase, std::char_traits<char>::length(kErase));
    }
}

void Progress::step(std::string what) {
    const std::size_t done = std::min(begun_, steps_);
    ++begun_;
    if (!terminal_) {
        return;
    }
    const auto now = Clock::now();
    const std::chrono::duration<double> passed = now - began_;
    if ((!shown_ && passed < kQuiet && expected_ < kQuiet) || (shown_ && now - printed_at_ < kBetweenLines)) {
        return;
    }
    std::string line = std::move(what);
    if (steps_ != 0) {
        const double share = static_cast<double>(done) / static_cast<double>(steps_);
        // The steps that are done tell how long the others will take. Before the first, only `expected` does.
        std::chrono::duration<double> left = expected_;
        if (done != 0) {
            left = passed / share - passed;
        }
        line += fmt::format(" [{:.0f} %{}]", 100 * share, left.count() > 0 ? ", " + time_left(left) + " left" : "");
    }
    print(line);
    printed_at_ = now;
    shown_ = true;
}

void Progress::print(const std::string& line) {
    winsize window{};
    const std::size_t columns =
        ::ioctl(descriptor_, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : kUsualColumns;
    // A line that is wider than the terminal could not be rewritten.
    const std::string text = kErase + line.substr(0, columns - 1);
    (void)!::write(descriptor_, text.data(), text.size());  // a terminal that is gone needs no line
}

}  // namespace pollcore::perf
