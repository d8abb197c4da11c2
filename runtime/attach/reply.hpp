// A message to an attached process.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "attach/wire.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct Reply {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;  ///< sent along

    /// Else an event, which nobody asked for.
    [[nodiscard]] bool is_answer() const noexcept {
        wire::Header header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        return header.id != 0;
    }
};

}  // namespace pollcore
