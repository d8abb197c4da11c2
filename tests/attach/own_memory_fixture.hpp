// A fixture for tests of memory that an attached process registers itself, at a device that has a kernel behind it
// (Soft-RoCE in the guest).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attach/daemon_fixture.hpp"
#include "patient.hpp"

namespace pollcore::test {

inline constexpr std::size_t kBytes = 8192;

inline std::set<int> open_descriptors() {
    std::set<int> all;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        all.insert(std::stoi(entry.path().filename()));
    }
    return all;
}

/// The descriptors of the kernel's RDMA devices that were opened since `before`.
inline std::vector<int> uverbs_since(const std::set<int>& before) {
    std::vector<int> found;
    for (const int fd : open_descriptors()) {
        std::error_code none;
        const auto to = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
        if (!before.contains(fd) && to.string().find("uverbs") != std::string::npos) {
            found.push_back(fd);
        }
    }
    return found;
}

class OwnMemoryTest : public DaemonTest {
protected:
    OwnMemoryTest() {
        config_.workers[0].idle = IdlePolicy::yield;
        config_.attach.own_memory.all = true;
    }

    [[nodiscard]] AttachOptions options() const {
        AttachOptions all = patient({.path = socket()});
        all.own_memory = true;
        return all;
    }
    [[nodiscard]] std::string device() const { return config_.devices[0].verbs_name; }
    static void expect_error(int code, const std::function<void()>& call) {
        try {
            call();
            ADD_FAILURE() << "an error " << code << " was expected";
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), code) << error.what();
        }
    }
};

}  // namespace pollcore::test
