#include "session/connection_events.hpp"

#include <utility>

namespace pollcore {

void ConnectionEvents::Place::keep(Event&& event) noexcept {
    switch (event.type) {
        case EventType::established:
        case EventType::connect_failed: outcome = std::move(event); break;
        case EventType::reset_done:
        case EventType::closed: end = std::move(event); break;
        case EventType::disconnected: disconnected = true; break;
        case EventType::qp_error: qp_error = true; break;
        case EventType::connect_request: connect_request = true; break;
        default: break;
    }
}

Event ConnectionEvents::Place::take() noexcept {
    Event event;
    event.qp = qp;
    event.listener = listener;
    // A reset comes first, because it begins a new life, and the other events belong to that life.
    if (end && end->type == EventType::reset_done) {
        event = std::move(*end);
        end.reset();
    } else if (outcome) {
        event = std::move(*outcome);
        outcome.reset();
    } else if (std::exchange(disconnected, false)) {
        event.type = EventType::disconnected;
    } else if (std::exchange(qp_error, false)) {
        event.type = EventType::qp_error;
    } else if (std::exchange(connect_request, false)) {
        event.type = EventType::connect_request;
    } else {
        event = std::move(*end);
        end.reset();
    }
    return event;
}

template <class Object>
void ConnectionEvents::prepare(typename Owners<Object>::node_type& spare) {
    if (spare.empty()) {
        Owners<Object> one;
        one.emplace(Object{}, Places::iterator{});
        spare = one.extract(one.begin());
    }
}

void ConnectionEvents::prepare() {
    prepare<QpHandle>(spare_qp_);
    prepare<ListenerHandle>(spare_listener_);
    if (spare_place_.empty()) {
        spare_place_.emplace_back();
    }
}

template <class Object>
void ConnectionEvents::add(Owners<Object>& owners, typename Owners<Object>::node_type& spare, const Object& object,
                           Place&& place) {
    prepare();
    if (owners.contains(object)) {
        return;
    }
    const Places::iterator at = spare_place_.begin();
    *at = std::move(place);
    spare.key() = object;
    spare.mapped() = at;
    owners.insert(std::move(spare));
    Places& to = at->has_events() ? full_ : quiet_;
    to.splice(to.end(), spare_place_, at);
}

void ConnectionEvents::add(QpHandle qp) {
    add(qps_, spare_qp_, qp, {.qp = qp});
}

void ConnectionEvents::add(const ListenerHandle& listener) {
    add(listeners_, spare_listener_, listener, {.listener = listener, .connect_request = true});
}

template <class Object>
void ConnectionEvents::remove(Owners<Object>& owners, const Object& object) noexcept {
    const auto owner = owners.find(object);
    if (owner != owners.end()) {
        Places& in = owner->second->has_events() ? full_ : quiet_;
        in.erase(owner->second);
        owners.erase(owner);
    }
}

void ConnectionEvents::remove(QpHandle qp) noexcept {
    // Handles of one index lie side by side.
    for (auto at = qps_.lower_bound(QpHandle{qp.index, 0}); at != qps_.end() && at->first.index == qp.index; ++at) {
        if (at->first == qp || at->second->former == qp) {
            const QpHandle present = at->first;
            return remove(qps_, present);
        }
    }
}
void ConnectionEvents::remove(const ListenerHandle& listener) noexcept {
    remove(listeners_, listener);
}

void ConnectionEvents::rename(QpHandle from, QpHandle to) noexcept {
    auto owner = qps_.extract(from);
    if (owner.empty()) {
        return;
    }
    const Places::iterator place = owner.mapped();
    owner.key() = to;
    qps_.insert(std::move(owner));
    if (place->has_events()) {
        quiet_.splice(quiet_.end(), full_, place);
    }
    place->qp = to;
    place->former = from;
    place->outcome.reset();
    place->end.reset();
    place->disconnected = place->qp_error = false;
}

template <class Object>
void ConnectionEvents::keep(const Owners<Object>& owners, const Object& object, Event&& event) noexcept {
    const auto owner = owners.find(object);
    if (owner == owners.end()) {
        return;
    }
    const Places::iterator place = owner->second;
    if (!place->has_events()) {
        full_.splice(full_.end(), quiet_, place);
    }
    place->keep(std::move(event));
}

void ConnectionEvents::keep(Event&& event) noexcept {
    if (event.type == EventType::connect_request) {
        const ListenerHandle listener = event.listener;
        return keep(listeners_, listener, std::move(event));
    }
    QpHandle qp = event.qp;
    if (event.renewed.valid()) {
        rename(qp, event.renewed);
        qp = event.renewed;
    }
    keep(qps_, qp, std::move(event));
}

Event ConnectionEvents::take() noexcept {
    const Places::iterator place = full_.begin();
    Event event = place->take();
    Places& to = place->has_events() ? full_ : quiet_;
    to.splice(to.end(), full_, place);
    return event;
}

}  // namespace pollcore
