// A budget for log lines that another process can cause as often as it likes.
//
// Thread safety: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace pollcore {

/// Allows a fixed number of lines each second. Lines beyond that are left out and counted, and the next line contains
/// their number.
class LineBudget {
public:
    using Clock = std::chrono::steady_clock;

    explicit LineBudget(int per_second) noexcept : per_second_(per_second), left_(per_second) {}

    /// Returns nothing if a line must be left out now. Otherwise returns how many lines were left out before this line.
    [[nodiscard]] std::optional<std::uint64_t> take(Clock::time_point now) noexcept {
        if (now - since_ >= std::chrono::seconds(1)) {
            since_ = now;
            left_ = per_second_;
        }
        if (left_ == 0) {
            ++left_out_;
            return std::nullopt;
        }
        --left_;
        return std::exchange(left_out_, 0);
    }

private:
    int per_second_;
    int left_;
    Clock::time_point since_{};
    std::uint64_t left_out_ = 0;
};

/// Text for the end of a line: how many lines were left out before it.
[[nodiscard]] inline std::string and_others(std::uint64_t left_out) {
    return left_out == 0 ? std::string() : " (" + std::to_string(left_out) + " lines like this were left out before)";
}

}  // namespace pollcore
