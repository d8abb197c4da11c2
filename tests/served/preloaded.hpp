// How a program of this build is started over libpollcore-verbs.so of this build.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace pollcore::test {

/// The library of a sanitizer that this process has loaded; empty if it has none. It must come before all others, also
/// before those in LD_PRELOAD.
inline std::string sanitizer_library() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        for (const char* name : {"/libasan.so", "/libtsan.so"}) {
            if (line.find(name) != std::string::npos) {
                return line.substr(line.find('/'));
            }
        }
    }
    return "";
}

/// The value of LD_PRELOAD.
inline std::string preloaded() {
    const std::string library = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
                                "apps/pollcore-run/libpollcore-verbs.so";
    const std::string before = sanitizer_library();
    return before.empty() ? library : before + " " + library;
}

}  // namespace pollcore::test
