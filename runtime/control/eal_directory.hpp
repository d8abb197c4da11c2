// Where EAL has its runtime directory while it starts.
//
// EAL makes a directory "dpdk", open to its maker alone, in the one that the environment variable RUNTIME_DIRECTORY
// names; without that variable in /var/run for root, and for others in $XDG_RUNTIME_DIR or /tmp. So in /tmp it is the
// first user's, and XDG_RUNTIME_DIR may still be that of the user before su(1): EAL then complains. As we start it, EAL
// keeps nothing there, so this gives it a directory of its own by that variable, and takes both back.
#pragma once

#include <string>
#include <vector>

namespace pollcore {

/// For the time that EAL starts. Thread safety: other threads may read the environment meanwhile. They may not change
/// it, which no program with threads may.
class EalDirectory {
public:
    /// Makes a directory that is this user's alone. Where none can be made EAL chooses one by itself.
    EalDirectory();
    ~EalDirectory();
    EalDirectory(const EalDirectory&) = delete;
    EalDirectory& operator=(const EalDirectory&) = delete;

private:
    std::string path_;  // empty: there is none
    char** before_ = nullptr;
};

}  // namespace pollcore
