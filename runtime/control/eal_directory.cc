#include "control/eal_directory.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace pollcore {
namespace {

constexpr std::string_view kVariable = "RUNTIME_DIRECTORY=";

// The environment while an EalDirectory exists. It is never freed, because another thread may still be reading it.
// setenv(3) cannot be used, because it may free memory that another thread is reading.
struct Environment {
    std::string entry;
    std::vector<char*> entries;
};

Environment& environment() {
    static auto* const only = new Environment;
    return *only;
}

}  // namespace

EalDirectory::EalDirectory() {
    std::string made = "/tmp/pollcore-eal-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) {
        return;
    }
    path_ = made;
    Environment& ours = environment();
    ours.entry = std::string(kVariable) + path_;
    ours.entries.assign(1, ours.entry.data());
    before_ = environ;
    for (char** entry = before_; entry != nullptr && *entry != nullptr; ++entry) {
        if (!std::string_view(*entry).starts_with(kVariable)) {
            ours.entries.push_back(*entry);
        }
    }
    ours.entries.push_back(nullptr);
    environ = ours.entries.data();
}

EalDirectory::~EalDirectory() {
    if (path_.empty()) {
        return;
    }
    if (environ ==
        environment().entries.data()) {  // else somebody has changed the environment, and before_ may be invalid
        environ = before_;
    }
    std::error_code ignored;  // after a failure, the directory stays in /tmp
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace pollcore
