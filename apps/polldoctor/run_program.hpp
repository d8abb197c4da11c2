// Runs a program of the distribution, and returns what it prints.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace pollcore::doctor {

/// `command` begins with the program's whole path. The program gets no input and hardly an environment. Returns what it
/// wrote to its standard output, up to `bytes_max`, and a last line in parentheses if it failed, was not there, or was
/// killed because it took longer than `limit`.
[[nodiscard]] std::string output_of(const std::vector<std::string>& command, std::chrono::milliseconds limit,
                                    std::size_t bytes_max);

}  // namespace pollcore::doctor
