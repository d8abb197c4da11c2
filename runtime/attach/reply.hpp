// A message to an attached process.
#pragma once

#include <cstddef>
#include <cstring>
#include <list>
#include <vector>

#include "attach/wire.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct Reply {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;  ///< sent along with the message

    /// Returns false if the message is an event, which answers no request.
    [[nodiscard]] bool is_answer() const noexcept {
        wire::Header header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        return header.id != 0;
    }
};

/// A list of one Reply. Passing the list on allocates nothing. So an answer cannot be lost if its node is made before
/// the request is carried out (D29).
using ReplyNode = std::list<Reply>;

}  // namespace pollcore
