// The options with which tests attach. On a busy machine a daemon may answer late, which is no failure.
#pragma once

#include <chrono>
#include <utility>

#include "pollcore/attach.hpp"

namespace pollcore::test {

/// Sets time limits so long that only a hang reaches them.
[[nodiscard]] inline AttachOptions patient(AttachOptions options) {
    options.timeout = options.answer_within = std::chrono::minutes(10);
    return options;
}

}  // namespace pollcore::test
