// What a program uses of the verbs, by the symbols that it and its libraries import.
//
// Thread safety: pure functions.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace pollcore::run {

/// How a function of the verbs fares in a program that pollcore-run has started.
enum class Fate {
    served,      ///< by the preloaded library
    passed_on,   ///< to libibverbs or librdmacm; it needs no device, or uses what is served
    impossible,  ///< fails: it needs the provider, or a kind of queue pair that is not served
};

struct Use {
    std::string symbol;
    std::filesystem::path user;  ///< the program, or its library that imports the symbol
    Fate fate = Fate::passed_on;
};

/// A program that cannot be served at all.
enum class Obstacle { none, is_static, has_privileges, no_elf };

struct ProgramCheck {
    Obstacle obstacle = Obstacle::none;
    std::vector<Use> uses;
};

/// Looks at the file at `path`, and at the libraries that the dynamic loader would load for it. `served`: the functions
/// that the preloaded library exports. Throws std::runtime_error if a file cannot be read.
[[nodiscard]] ProgramCheck check_program(const std::filesystem::path& path, const std::set<std::string>& served);

/// Why nothing of a program can be served, without a look at its symbols.
[[nodiscard]] Obstacle obstacle_of(const std::filesystem::path& path);

/// The functions that a shared library exports.
[[nodiscard]] std::set<std::string> exported_functions(const std::filesystem::path& library);

[[nodiscard]] Fate fate_of(const std::string& symbol, const std::set<std::string>& served) noexcept;

}  // namespace pollcore::run
