// Address handles for datagrams: the way to a port, whose UD queue pairs are then named by their numbers.
//
// Thread safety: control calls; from any thread, one at a time per object. handle() needs no care.
#pragma once

#include <memory>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

class ControlSide;

/// An address handle (ibv_create_ah(3)), which all sessions may use on UD queue pairs of its protection domain.
/// Context::create_address_handle makes it; never call that on a hot path, since it may have to resolve an address on
/// the network (D40).
class POLLCORE_API AddressHandle {
public:
    AddressHandle() = default;
    /// Made by Context.
    POLLCORE_INTERNAL AddressHandle(std::shared_ptr<ControlSide> control, AhHandle handle) noexcept;
    ~AddressHandle();
    AddressHandle(AddressHandle&& other) noexcept;
    AddressHandle& operator=(AddressHandle&& other) noexcept;

    /// Goes into UdDestination. A send that names a destroyed handle completes with request_refused.
    [[nodiscard]] AhHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Destroys the handle. Throws Error(EBUSY), and changes nothing, while submitted sends name it. The destructor
    /// does the same, except that it leaves a handle in use to the runtime, which ends it when it stops.
    void destroy();

private:
    std::shared_ptr<ControlSide> control_;
    AhHandle handle_{};
};

}  // namespace pollcore
