// Where datagrams go: the way to a port, from which any of its UD queue pairs is reached by its number.
//
// Thread safety: control calls; from any thread, one at a time per object. handle() needs no care.
#pragma once

#include <memory>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

class ControlSide;

/// An address handle (ibv_create_ah(3)), which all sessions may use on UD queue pairs of its protection domain. Made by
/// Context::create_address_handle, never on a hot path: it may have to ask the network who is there.
class POLLCORE_API AddressHandle {
public:
    AddressHandle() = default;
    /// By Context.
    POLLCORE_INTERNAL AddressHandle(std::shared_ptr<ControlSide> control, AhHandle handle) noexcept;
    ~AddressHandle();
    AddressHandle(AddressHandle&& other) noexcept;
    AddressHandle& operator=(AddressHandle&& other) noexcept;

    /// What goes into UdDestination. A send that names it after it was destroyed completes with request_refused.
    [[nodiscard]] AhHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Throws Error(EBUSY) while sends that were submitted before name it; nothing has changed then. The destructor
    /// does the same, except that it leaves a handle that is in use to the runtime, which ends it when it stops.
    void destroy();

private:
    std::shared_ptr<ControlSide> control_;
    AhHandle handle_{};
};

}  // namespace pollcore
