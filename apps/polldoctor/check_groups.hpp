// The checks by subject, a file for each.
//
// Thread safety: pure functions.
#pragma once

#include <span>

#include "checks.hpp"

namespace pollcore::doctor {

[[nodiscard]] std::span<const Check> cpu_checks() noexcept;
[[nodiscard]] std::span<const Check> limit_checks() noexcept;
[[nodiscard]] std::span<const Check> task_checks() noexcept;
[[nodiscard]] std::span<const Check> interrupt_checks() noexcept;
[[nodiscard]] std::span<const Check> frequency_checks() noexcept;
[[nodiscard]] std::span<const Check> numa_checks() noexcept;
[[nodiscard]] std::span<const Check> memory_checks() noexcept;
[[nodiscard]] std::span<const Check> pcie_checks() noexcept;
[[nodiscard]] std::span<const Check> network_checks() noexcept;
[[nodiscard]] std::span<const Check> counter_checks() noexcept;
[[nodiscard]] std::span<const Check> clock_checks() noexcept;

}  // namespace pollcore::doctor
