// A temporary runtime directory for DPDK's EAL while EAL starts.
//
// The environment variable RUNTIME_DIRECTORY names a directory. In it EAL makes a subdirectory "dpdk" that only the
// current user may use. Without the variable, EAL uses /var/run for root, and $XDG_RUNTIME_DIR or /tmp for other users.
// There EAL may report errors: /tmp/dpdk belongs to the first user who ran EAL, and after su(1) XDG_RUNTIME_DIR may
// still name the directory of the former user. With the arguments that pollcore passes, EAL keeps nothing in the
// directory. So this class sets the variable to a new directory. When EAL has started, the class restores the
// environment and removes the directory.
#pragma once

#include <string>
#include <vector>

namespace pollcore {

/// With telemetry, EAL puts a socket into the subdirectory dpdk/pollcore of the directory that it chooses, and takes
/// what is there without a look at its owner. This function makes both directories first. Returns why another user
/// could reach the socket there, or nothing.
[[nodiscard]] std::string fault_of_telemetry_directory();

/// Exists only while EAL starts. Thread safety: meanwhile other threads may read the environment, but must not change
/// it.
class EalDirectory {
public:
    /// Makes a directory that only this user may use. If that fails, EAL chooses its directory by itself.
    EalDirectory();
    ~EalDirectory();
    EalDirectory(const EalDirectory&) = delete;
    EalDirectory& operator=(const EalDirectory&) = delete;

private:
    std::string path_;  // empty: the directory could not be made
    char** before_ = nullptr;
};

}  // namespace pollcore
