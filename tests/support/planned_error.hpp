// The exception that a call throws when the software device's fault plan makes it fail.
#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "pollcore/error.hpp"

namespace pollcore::testing {

inline void expect_planned_error(int errno_value, const std::function<void()>& call) {
    try {
        call();
        FAIL() << "the call went well";
    } catch (const Error& error) {
        EXPECT_EQ(error.code().value(), errno_value) << error.what();
        EXPECT_NE(std::string(error.what()).find("fault plan"), std::string::npos) << error.what();
    }
}

}  // namespace pollcore::testing
