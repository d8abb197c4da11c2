// How tests attach: a daemon on a machine that is busy with other things answers late, and that is no failure.
#pragma once

#include <chrono>
#include <utility>

#include "pollcore/attach.hpp"

namespace pollcore::test {

/// With limits that only a hang reaches.
[[nodiscard]] inline AttachOptions patient(AttachOptions options) {
    options.timeout = options.answer_within = std::chrono::minutes(10);
    return options;
}

}  // namespace pollcore::test
