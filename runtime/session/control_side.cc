#include "session/control_side.hpp"

namespace pollcore {

void require_own_process(const ControlSide& control) {
    if (control.is_forked()) {
        throw Error(EPERM,
                    "this is a forked child, and what it asks for belongs to its parent, whose threads are not here. A "
                    "child may "
                    "make an Attachment of its own, and a Runtime after exec()");
    }
}

}  // namespace pollcore
