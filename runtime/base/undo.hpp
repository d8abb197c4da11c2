// Takes back the earlier steps of an action if a later step fails (D29).
//
// Thread safety: that of the function that it runs.
#pragma once

#include <utility>

namespace pollcore {

/// The destructor runs `take_back`, unless keep() was called. `take_back` must not throw. So it must not allocate
/// memory, because the step that failed may have been an allocation.
template <class F>
class [[nodiscard]] Undo {
public:
    explicit Undo(F take_back) noexcept : take_back_(std::move(take_back)) {}
    ~Undo() {
        if (!kept_) {
            take_back_();
        }
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;

    void keep() noexcept { kept_ = true; }

private:
    F take_back_;
    bool kept_ = false;
};

}  // namespace pollcore
