// Where EAL has its runtime directory while it starts.
//
// EAL makes a directory "dpdk", which only its maker may use, in the directory that the environment variable
// RUNTIME_DIRECTORY names. Without the variable it takes /var/run for root, and $XDG_RUNTIME_DIR or /tmp for others.
// Then EAL may complain: /tmp/dpdk belongs to the first user, and XDG_RUNTIME_DIR may still name that of the user
// before su(1). As we start it, EAL keeps nothing in this directory. So this class sets the variable to a directory of
// its own, and takes both back when EAL has started.
#pragma once

#include <string>
#include <vector>

namespace pollcore {

/// Lives while EAL starts. Thread safety: other threads may read the environment meanwhile. They may not change it, as
/// in any program with threads.
class EalDirectory {
public:
    /// Makes a directory that is this user's alone. If that fails, EAL chooses one by itself.
    EalDirectory();
    ~EalDirectory();
    EalDirectory(const EalDirectory&) = delete;
    EalDirectory& operator=(const EalDirectory&) = delete;

private:
    std::string path_;  // empty: there is none
    char** before_ = nullptr;
};

}  // namespace pollcore
