// Takes capabilities(7) away from a thread for a while.
#pragma once

#include <linux/capability.h>

#include <array>
#include <cstdint>

namespace pollcore {

/// As long as it exists, its thread has no effective capabilities but those by which files are opened
/// (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH). Other threads keep theirs.
///
/// A device's context that this thread opens then gives nobody the powers of the opener: mlx5's DEVX interface gives
/// each user of a context what CAP_NET_RAW and CAP_SYS_RAWIO permitted when the context was opened.
class WithoutCapabilities {
public:
    /// Throws Error if the kernel does not take the capabilities away.
    WithoutCapabilities();
    /// Gives the capabilities back.
    ~WithoutCapabilities();
    WithoutCapabilities(const WithoutCapabilities&) = delete;
    WithoutCapabilities& operator=(const WithoutCapabilities&) = delete;

private:
    using Sets = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;
    Sets before_{};
};

}  // namespace pollcore
