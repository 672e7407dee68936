// What the host put into which stream, and what of it is ordered before what. Work runs here when it is
// given; on a device it runs when its stream comes to it, and nothing else orders it.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "hooks.h"

namespace opw::core {

class Streams {
public:
    // The default stream waits for all blocking streams and they for it; others only for events.
    void add(const void* stream, bool blocking) {
        const std::lock_guard<std::mutex> hold(mutex_);
        Stream& s = of(stream);
        s.blocking = blocking;
    }
    bool several() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return all_.size() > 1;
    }
    Operation enqueue(const void* stream, bool waited = false) {
        const std::lock_guard<std::mutex> hold(mutex_);
        Stream& s = ready(stream);
        if (s.clock.size() <= s.index) s.clock.resize(s.index + 1);
        ++s.clock[s.index];
        Operation made{s.index, s.clock[s.index], waited, s.clock};
        if (waited) join(host_, s.clock);
        return made;
    }
    // What has been given to a stream so far, for an event.
    Clock recorded(const void* stream) {
        const std::lock_guard<std::mutex> hold(mutex_);
        return ready(stream).clock;
    }
    void wait(const void* stream, const Clock& event) {
        const std::lock_guard<std::mutex> hold(mutex_);
        join(of(stream).clock, event);
    }
    void host_waits(const Clock& event) {
        const std::lock_guard<std::mutex> hold(mutex_);
        join(host_, event);
    }
    void host_waits_for_all() {
        const std::lock_guard<std::mutex> hold(mutex_);
        for (const auto& [handle, s] : all_) join(host_, s.clock);
    }
    Clock host() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return host_;
    }
    void set_host(const Clock& clock) {
        const std::lock_guard<std::mutex> hold(mutex_);
        host_ = clock;
    }
    bool host_knows(const Operation& operation) const { return before(operation, host_); }

    static bool before(const Operation& operation, const Clock& clock) {
        return operation.stream < clock.size() && clock[operation.stream] >= operation.number;
    }

private:
    struct Stream {
        uint32_t index = 0;
        bool blocking = true;
        Clock clock;
    };
    static void join(Clock& into, const Clock& from) {
        if (into.size() < from.size()) into.resize(from.size());
        for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
    }
    static const void* handle(const void* stream) { return stream == cudaStreamLegacy ? nullptr : stream; }
    Stream& of(const void* stream) {
        const auto [place, fresh] = all_.try_emplace(handle(stream));
        if (fresh) place->second.index = static_cast<uint32_t>(all_.size() - 1);
        return place->second;
    }
    // A stream, with all that its next work comes after in its clock.
    Stream& ready(const void* stream) {
        Stream& s = of(stream);
        join(s.clock, host_);
        if (!handle(stream)) {
            for (const auto& [other, o] : all_) if (o.blocking) join(s.clock, o.clock);
        } else if (s.blocking) {
            join(s.clock, of(nullptr).clock);
        }
        return s;
    }
    std::mutex mutex_;
    std::map<const void*, Stream> all_;
    Clock host_;
};
extern Streams& streams;

}  // namespace opw::core
