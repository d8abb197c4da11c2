// Events of connections: those of queue pairs and listeners. They are never lost, because each object has a place of
// its own, with room for one event of each type. The place is allocated when the object is made, so that keep() needs
// no memory.
//
// Thread safety: one thread at a time.
#pragma once

#include <list>
#include <map>
#include <optional>

#include "pollcore/event.hpp"

namespace pollcore {

class ConnectionEvents {
public:
    /// From now on the object's events are kept. Throws std::bad_alloc, unless prepare() was called before.
    void add(QpHandle qp);
    /// The listener has an event at once, because a request may have come before this call.
    void add(const ListenerHandle& listener);
    /// Allocates what the next add() needs, of either kind. Throws std::bad_alloc.
    void prepare();
    /// Drops the object's events. Does nothing if the object is unknown. A queue pair is also known by the handle that
    /// it had before its last reset.
    void remove(QpHandle qp) noexcept;
    void remove(const ListenerHandle& listener) noexcept;
    /// The queue pair has a new handle. Drops the events of its old life.
    void rename(QpHandle from, QpHandle to) noexcept;
    /// Keeps an event of the queue pair or listener that it names. An event of an unknown object is dropped. If the
    /// event has a new handle of a queue pair (Event::renewed), first does rename().
    void keep(Event&& event) noexcept;
    [[nodiscard]] bool contains(QpHandle qp) const noexcept { return qps_.contains(qp); }
    [[nodiscard]] bool empty() const noexcept { return full_.empty(); }
    /// Takes an event. Objects take turns. Must be called only if there are events.
    [[nodiscard]] Event take() noexcept;

private:
    /// The events of a queue pair or of a listener.
    struct Place {
        QpHandle qp{};      ///< not valid if the place is a listener's
        QpHandle former{};  ///< the handle before the last reset
        ListenerHandle listener{};
        std::optional<Event> outcome{};  ///< established or connect_failed
        bool disconnected = false;
        bool qp_error = false;
        bool connect_request = false;
        std::optional<Event> end{};  ///< reset_done or closed

        [[nodiscard]] bool has_events() const noexcept {
            return outcome || disconnected || qp_error || connect_request || end;
        }
        void keep(Event&& event) noexcept;
        [[nodiscard]] Event take() noexcept;
    };
    using Places = std::list<Place>;
    template <class Object>
    using Owners = std::map<Object, Places::iterator>;

    template <class Object>
    void prepare(typename Owners<Object>::node_type& spare);
    template <class Object>
    void add(Owners<Object>& owners, typename Owners<Object>::node_type& spare, const Object& object, Place&& place);
    template <class Object>
    void remove(Owners<Object>& owners, const Object& object) noexcept;
    template <class Object>
    void keep(const Owners<Object>& owners, const Object& object, Event&& event) noexcept;

    Owners<QpHandle> qps_;
    Owners<ListenerHandle> listeners_;
    // What prepare() has allocated.
    Owners<QpHandle>::node_type spare_qp_;
    Owners<ListenerHandle>::node_type spare_listener_;
    Places spare_place_;
    Places quiet_;  // places without events
    Places full_;   // places with events; the next event is taken from the first one
};

}  // namespace pollcore
