// When a process began, which tells it from a later one with the same number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace pollcore::statistics {

/// Field 22 of /proc/PID/stat (proc(5)), in clock ticks since the host's boot. Nothing if there is no such process, or
/// if it has ended and its parent has not noticed.
[[nodiscard]] inline std::optional<std::uint64_t> process_start(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(stat, line)) {
        return std::nullopt;
    }
    // The name in parentheses may have blanks and parentheses itself.
    std::istringstream rest(line.substr(line.rfind(')') + 1));
    std::string word;
    constexpr int kFirstField = 3;
    constexpr int kStartField = 22;
    for (int field = kFirstField; field <= kStartField; ++field) {
        if (!(rest >> word) || (field == kFirstField && (word == "Z" || word == "X"))) {
            return std::nullopt;
        }
    }
    return std::stoull(word);
}

}  // namespace pollcore::statistics
