#include "session/control_side.hpp"

namespace pollcore {

void require_own_process(const ControlSide& control) {
    if (control.is_forked()) {
        throw Error(
            EPERM,
            "this process is a forked child; the object belongs to the parent, whose threads do not run here. A "
            "child may "
            "make an Attachment of its own, and a Runtime after exec()");
    }
}

}  // namespace pollcore
