// Takes out of texts what may be a secret, before they go into a bug report.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace pollcore::doctor {

/// The TOML text without its comments, in which people write anything. The lines keep their numbers.
[[nodiscard]] std::string without_comments(std::string_view toml);
/// The kernel's command line with the values of parameters about CPUs, clocks, memory and PCI. Of other parameters, of
/// which some have keys or passwords, only the names remain.
[[nodiscard]] std::string kernel_parameters_shown(std::string_view command_line);
/// The kernel's log without its lines about the command line.
[[nodiscard]] std::string without_command_line(std::string_view kernel_log);

}  // namespace pollcore::doctor
