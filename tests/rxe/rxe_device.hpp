// The RDMA devices that these tests run on: scripts/rxe-vm names them in the environment.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "device/verbs/verbs_device.hpp"

namespace pollcore::rxe {

/// Returns an environment variable that scripts/rxe-vm sets. If the variable is not set, the test cannot run: it fails
/// and is not skipped.
inline std::string variable(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr) {
        ADD_FAILURE() << name << " is not set: run this test by scripts/rxe-vm";
        return "there-is-no-device";
    }
    return value;
}

inline std::unique_ptr<VerbsDevice> open_device() {
    return VerbsDevice::open(variable("POLLCORE_RXE_DEVICE"), 1);
}
inline std::unique_ptr<VerbsDevice> open_peer() {
    return VerbsDevice::open(variable("POLLCORE_RXE_PEER"), 1);
}

/// Runs `call`, which must throw Error, and returns the error.
template <class Call>
Error error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(0, "nothing was thrown");
}

inline bool says(const std::string& sentence, const std::string& part) {
    return sentence.find(part) != std::string::npos;
}
inline bool says(const Error& error, const std::string& part) {
    return says(std::string(error.what()), part);
}

}  // namespace pollcore::rxe
